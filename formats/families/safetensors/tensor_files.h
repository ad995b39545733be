// SPDX-License-Identifier: Apache-2.0
// Checkpoints over safetensors files: they hold tensors alone, and no checksums.
#pragma once

#include <cstdint>

#include "formats/bytes/files/file.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/file_pool.h"

namespace fsdp::formats::safetensors {

// Whoever derives from it fills description and index, and says where chunks lie.
class TensorFiles : public Checkpoint {
 public:
  Value value(const ValueEntry& value) const override;
  ChunkData storage(const StorageRef& storage) const override;
  void check_unchanged() const override { pool_.check_unchanged(); }
  // Coverage alone: opening checked the rest of what can be known.
  VerifyReport verify(const VerifyOptions& options) const override;

 protected:
  // Hint: these elements of the tensor at `location` are read.  See Checkpoint::expect_chunk.
  bool expect_elements(const Location& location, DType dtype, ElementRange part) const;
  explicit TensorFiles(std::shared_ptr<const Folder> folder)
      : folder_(std::move(folder)), pool_(*folder_) {}
  // A tensor of a file, whole and dense.  Throws: what FilePool::get throws.
  ChunkData tensor_data(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes,
                        DType dtype) const;

  std::shared_ptr<const Folder> folder_;
  mutable FilePool pool_;
};

}  // namespace fsdp::formats::safetensors
