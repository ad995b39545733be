// SPDX-License-Identifier: Apache-2.0
// Values that contain themselves.
//
// Note [cycles]: a value owns its members, so no value may contain itself.  Some streams hold
// containers that do (OmegaConf's nodes refer to their parents).  A first pass (PickleCycles) finds
// the containers that such a stream refers to before they are complete.  Each such reference
// becomes a back-reference: a number that owns nothing.  The container gets the same number.
// Depth, memory and destruction stay those of a tree.  The writer writes a back-reference as a
// fetch from the memo, as it was read.
#pragma once

#include <cstdint>
#include <optional>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// A back-reference is a kOpaque with this tag, which no host uses.
inline constexpr std::uint32_t kBackReferenceTag = UINT32_MAX;

inline Value make_back_reference(std::uint32_t number) {
  return Value::opaque(kBackReferenceTag, number);
}

// Returns the number of a back-reference; nothing for other values.
inline std::optional<std::uint32_t> back_reference(const Value& value) {
  if (value.kind() != ValueKind::kOpaque || value.opaque_tag() != kBackReferenceTag)
    return std::nullopt;
  return static_cast<std::uint32_t>(value.opaque_payload());
}

// Returns the number by which members of the list, dict, set or object refer back to it; 0 if none
// does.
std::uint32_t cycle_number(const Value& value);

// Returns `value` with this cycle number, so that back-references to `number` refer to it.  For a
// new container that replaces the one with this number.
Value with_cycle_number(Value value, std::uint32_t number);

// Returns whether `value` is a back-reference or contains one.
bool holds_back_reference(const Value& value);

}  // namespace fsdp::formats
