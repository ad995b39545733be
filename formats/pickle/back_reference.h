// SPDX-License-Identifier: Apache-2.0
// Values that hold themselves.
//
// Note [cycles]: values own what they hold, so none may hold itself.  A stream in which one does
// (OmegaConf's nodes know their parents) is read with the containers in mind that it refers to
// before they are complete (PickleCycles): such a reference becomes a back-reference, a number that
// owns nothing, and the container bears that number.  Depth, memory and destruction stay those of a
// tree; the writer writes a back-reference as the fetch it was.
#pragma once

#include <cstdint>
#include <optional>

#include "formats/pickle/value.h"

namespace fsdp::formats {

// A back-reference is a kOpaque with this tag, which no host uses.
inline constexpr std::uint32_t kBackReferenceTag = UINT32_MAX;

inline Value make_back_reference(std::uint32_t number) {
  return Value::opaque(kBackReferenceTag, number);
}

// The number of a back-reference; nothing for other values.
inline std::optional<std::uint32_t> back_reference(const Value& value) {
  if (value.kind() != ValueKind::kOpaque || value.opaque_tag() != kBackReferenceTag)
    return std::nullopt;
  return static_cast<std::uint32_t>(value.opaque_payload());
}

// The number by which what lies in the list, dict, set or object refers back to it; 0 where nothing
// does.
std::uint32_t cycle_number(const Value& value);

// `value`, to which back-references of that number refer from now on: a new container in the place
// of the one that had it.
Value with_cycle_number(Value value, std::uint32_t number);

// Whether a back-reference is `value`, or lies anywhere in it.
bool holds_back_reference(const Value& value);

}  // namespace fsdp::formats
