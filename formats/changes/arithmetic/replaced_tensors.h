// SPDX-License-Identifier: Apache-2.0
// Replaces tensors of a checkpoint by computed ones.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/changes/arithmetic/computed_checkpoint.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

// Only the named leaves change: a tensor that is tied to a replaced one keeps its elements unless
// tie() is called.
class ReplacedTensors {
 public:
  explicit ReplacedTensors(std::shared_ptr<const Checkpoint> source);

  // Replaces the tensor of a leaf of the content.  Requires: the leaf is a tensor (tensor_number).
  // Returns the position of the new tensor, for tie().
  // Throws: kMismatch if another leaf of the same name was replaced.
  std::size_t replace(const Leaf& leaf, ComputedTensor tensor);
  // Ties the leaf to the replaced tensor at `position`.
  void tie(const Leaf& leaf, std::size_t position) { replaced_[leaf.key] = position; }
  // Adds a tensor under a key that the content lacks, in the deepest container of `beside` whose
  // key begins `key`.  The rest of the key is one step if the names of `beside` there have dots
  // inside, else one step for each component.
  void add(const Leaf& beside, const std::string& key, ComputedTensor tensor);
  bool empty() const { return computed_.empty(); }
  std::size_t size() const { return computed_.size(); }

  struct Result {
    std::shared_ptr<const Checkpoint> checkpoint;
    Value content;  // refers to `checkpoint`
  };
  // `content`: that of the source, edited or not.  `path`, `finish`: as for with_computed_tensors.
  Result finish(const Value& content, std::string path, std::function<void()> finish);

 private:
  std::size_t own_position(const Leaf& leaf) const;

  std::shared_ptr<const Checkpoint> source_;
  std::map<std::pair<std::string, KeyPath>, std::size_t> positions_;  // of tensors in the index
  std::map<std::size_t, ComputedTensor> computed_;
  std::map<std::string, std::size_t> replaced_;  // key -> position
  std::vector<AddedTensor> added_;
};

}  // namespace fsdp::formats
