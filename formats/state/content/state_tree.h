// SPDX-License-Identifier: Apache-2.0
// Nested state dicts: taking them apart into leaves, editing the leaves, and building a state dict
// from leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// One leaf of a nested value: a tensor, or a value that is not taken apart.
struct Leaf {
  std::string key;  // path steps joined by dots
  KeyPath path;
  Value value;
};

// Returns the leaves of `root` in order, by the rule by which PyTorch flattens.  Mappings are
// always taken apart (empty ones are leaves).  Lists and tuples are taken apart if they hold a
// tensor, a placeholder (content.h), a mapping, or a list that is taken apart.  If PyTorch would
// then find no leaf, as in a list of empty mappings, the list itself is a leaf: dcp_to_torch_save
// would look for it under its own key.  A root that is neither a mapping nor a list is one leaf
// with an empty key.
// Throws: kLimitNodes if shared parts unfold into more than 10 million leaves or 256 MiB of keys;
// kName if a key exceeds 64 KiB.
std::vector<Leaf> leaves_of(const Value& root);

// Rebuilds `root` with `edit` applied to every leaf, in the order of leaves_of.  An empty result
// drops the leaf, and the containers that this empties.  Containers keep their kinds, and keys
// their types.
Value with_leaves(const Value& root,
                  const std::function<std::optional<Value>(const Leaf& leaf)>& edit);

// Returns `root` without the leaves for whose key `keep` returns false, and without the containers
// that this empties.
Value pruned(const Value& root, const std::function<bool(const std::string&)>& keep);

// Builds a nested dict from leaves by their paths: text steps make dicts, numbers make lists, whose
// positions without a leaf are None.  A single leaf with an empty path is the whole.
// Throws: kKey if two paths contradict each other, kLimitNodes if positions of lists lie far apart.
Value nested(const std::vector<Leaf>& leaves);

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
