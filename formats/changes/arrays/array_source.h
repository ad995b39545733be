// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint as arrays.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::arrays {

// A checkpoint and the state of the checksums of its storages: names of files are unique only
// within a checkpoint.
class ArraySource {
 public:
  explicit ArraySource(std::shared_ptr<const Checkpoint> checkpoint);
  // Lifetime: the checkpoint outlives the source and its arrays.
  explicit ArraySource(const Checkpoint& checkpoint)
      : ArraySource(std::shared_ptr<const Checkpoint>(std::shared_ptr<void>(), &checkpoint)) {}

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const TensorEntry& entry(std::size_t tensor) const {
    return checkpoint_->index().tensors[tensor];
  }
  // Returns a tensor of its index.  Arrays of one tensor share their operand.
  Array array(std::size_t tensor);
  // Compares the storages that computed tensors read with their checksums; storages read in part
  // are read again.  Called after all reading. Throws: kZipCrc, kInterrupted, kChanged if the
  // checkpoint has changed; the errors of reading.
  void finish() const;

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::shared_ptr<StorageChecks> checks_;
  std::vector<std::shared_ptr<const Operand>> operands_;  // by tensor
};

// "float32 [3, 4]".
inline std::string tensor_text(const TensorEntry& tensor) {
  return cat(torch_name(tensor.dtype), " ", shape_text(tensor.shape));
}

// Returns whether two tensors of a checkpoint have the same dtype, shape and bits.
bool equal_tensors(const Checkpoint& checkpoint, std::size_t one, std::size_t other);

}  // namespace fsdp::formats::arrays
