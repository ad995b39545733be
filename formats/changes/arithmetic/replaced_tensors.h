// SPDX-License-Identifier: Apache-2.0
// Puts computed tensors in the places of some of a checkpoint's own.
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

// Tensors that are tied to a replaced one keep their elements unless tie() is called: only the
// named leaf changes.
class ReplacedTensors {
 public:
  explicit ReplacedTensors(std::shared_ptr<const Checkpoint> source);

  // Replaces the tensor of a leaf of the content.  Requires: the leaf is a tensor (tensor_number).
  // Returns the position of the new one, for tie().
  // Throws: kMismatch if another leaf of the same name was replaced.
  std::size_t replace(const Leaf& leaf, ComputedTensor tensor);
  // Makes the leaf one with another that was replaced.
  void tie(const Leaf& leaf, std::size_t position) { replaced_[leaf.key] = position; }
  // Adds a tensor under a key that the content lacks.  It stands in the container of `beside` that
  // both keys have in common; the rest of the key is one step where names of `beside` have dots
  // inside, else one for each component.
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
