// SPDX-License-Identifier: Apache-2.0
// Nested state dicts: taking one apart into leaves, editing them, and building one from leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/model/index.h"
#include "formats/pickle/value.h"

namespace fsdp::formats {

// One leaf of a nested value: a tensor, or what is not taken apart.
struct Leaf {
  std::string key;  // path steps joined by dots
  KeyPath path;
  Value value;
};

// The leaves of `root` in order.  Mappings are taken apart always (empty ones are leaves), lists
// and tuples where they hold a tensor, a mapping, or a list that is taken apart: the rule by which
// PyTorch flattens; placeholders (content.h) count as what is taken apart. Where that leaves
// PyTorch without any leaf, as in a list of empty mappings, the list is one: dcp_to_torch_save
// would look for it under its own key. A root that is no mapping and no list is one leaf with an
// empty key. Throws: kLimitNodes where shared parts unfold into more than 10 million leaves or 256
// MiB of keys, kName where a key exceeds 64 KiB.
std::vector<Leaf> leaves_of(const Value& root);

// `root` rebuilt with `edit` applied to every leaf, in the order of leaves_of; nothing drops the
// leaf, and the containers that this empties.  Containers keep their kinds and their keys their
// types.
Value with_leaves(const Value& root,
                  const std::function<std::optional<Value>(const Leaf& leaf)>& edit);

// `root` without the leaves for whose key `keep` says false, and without the containers that this
// empties.
Value pruned(const Value& root, const std::function<bool(const std::string&)>& keep);

// A nested dict built from leaves by their paths: text steps make dicts, numbers make lists, whose
// positions without a leaf are None.  A single leaf with an empty path is the whole.
// Throws: kKey where two paths contradict each other, kLimitNodes where positions of lists lie far
// apart.
Value nested(const std::vector<Leaf>& leaves);

}  // namespace fsdp::formats
