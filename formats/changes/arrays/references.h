// SPDX-License-Identifier: Apache-2.0
// Makes tensors of a mapped checkpoint as values for its content.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "formats/changes/arrays/array_checkpoint.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats::arrays {

class References {
 public:
  explicit References(const Checkpoint& source)
      : checkpoint_(std::make_unique<ArrayCheckpoint>(source)) {}

  Array source_array(std::size_t tensor) { return checkpoint_->source_array(tensor); }
  // Returns a tensor at that place.  Arrays of the same elements share one value: tied parameters
  // stay tied.
  Value shared(KeyPath path, const Array& array);
  // Returns a tensor that shares its value with no other, even if the elements are the same.
  Value separate(KeyPath path, const Array& array);
  // Returns the checkpoint.  Called once, when all tensors are made.
  std::unique_ptr<ArrayCheckpoint> take() { return std::move(checkpoint_); }

 private:
  std::unique_ptr<ArrayCheckpoint> checkpoint_;
  std::unordered_map<std::string, Value> made_;  // by what the array is made of
};

}  // namespace fsdp::formats::arrays
