// SPDX-License-Identifier: Apache-2.0
// Leaves of Checkpoint::tree for which the checkpoint has no object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// The tag of the opaque value that stands for an entry of the index, by its place in Index::order.
inline constexpr std::uint32_t kIndexedLeaf = 0x696E6478;  // "indx"

inline Value indexed_leaf(std::size_t place) {
  return Value::opaque(kIndexedLeaf, place);
}

// Returns the place that `value` stands for; nothing if it is not such a leaf.
inline std::optional<std::size_t> indexed_place(const Value& value) {
  if (value.kind() != ValueKind::kOpaque || value.opaque_tag() != kIndexedLeaf) return std::nullopt;
  return static_cast<std::size_t>(value.opaque_payload());
}

}  // namespace fsdp::formats
