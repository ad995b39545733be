// SPDX-License-Identifier: Apache-2.0
// Values that contain themselves.
//
// Note [cycles]: values own their members, so none may contain itself.  If a stream has a container
// that does (OmegaConf's nodes know their parents), a first pass finds the containers that it
// refers to before they are complete (PickleCycles): such a reference becomes a back-reference, a
// number that owns nothing, and the container gets the same number.  Depth, memory and destruction
// stay those of a tree; the writer writes a back-reference as the fetch that it was.
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

// Returns `value` with that number, so that back-references refer to it: a new container that
// replaces the one with this number.
Value with_cycle_number(Value value, std::uint32_t number);

// Returns whether `value` is a back-reference or contains one.
bool holds_back_reference(const Value& value);

}  // namespace fsdp::formats
