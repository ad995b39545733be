// SPDX-License-Identifier: Apache-2.0
// Nested state dicts: flattening one into an index's entries, and building one from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/container/pickle_value.h"
#include "formats/layout/checkpoint.h"
#include "formats/model/index.h"

namespace fsdp::formats {

// The archive number of storage references that stand for a whole tensor of an index; `key` is then
// its position in Index::tensors, in decimal.
inline constexpr std::uint64_t kTensorArchive = UINT64_MAX;

// One leaf of a nested value: a tensor, or what is not taken apart.
struct Leaf {
  std::string key;  // path steps joined by dots
  KeyPath path;
  Value value;
};

// The leaves of `root` in order.  Mappings are taken apart always (empty ones are leaves), lists
// and tuples where they hold a tensor, a mapping, or a list that is taken apart: the rule by which
// PyTorch flattens. A root that is no mapping and no list is one leaf with an empty key. Throws:
// kLimitNodes where shared parts unfold into more than 10 million leaves or 256 MiB of keys, kName
// where a key exceeds 64 KiB.
std::vector<Leaf> leaves_of(const Value& root);

// `root` without the leaves for whose key `keep` says false, and without the containers that this
// empties.
Value pruned(const Value& root, const std::function<bool(const std::string&)>& keep);

// The nested state dict that the index's paths describe, values read from `checkpoint` and spliced
// in, each tensor a dense one over a kTensorArchive storage.  Order is the index's. Throws: kKey
// where two paths contradict each other, kLimitNodes where positions of lists lie far apart; what
// Checkpoint::value throws.
Value nested_state_dict(const Checkpoint& checkpoint);

}  // namespace fsdp::formats
