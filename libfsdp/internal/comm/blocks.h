// SPDX-License-Identifier: Apache-2.0
// The blocks of all ranks after a collective, on the CPU, in this process or in others.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace fsdp::internal {

class Blocks {
 public:
  struct Segment {
    std::int64_t from = 0;  // in the block
    std::int64_t bytes = 0;
    char* to = nullptr;
  };

  virtual ~Blocks() = default;

  // Copies parts of a rank's block.
  // Throws: LostOffer (offer_board.h) if the block lies in another process that has ended.
  virtual void copy(int rank, const std::vector<Segment>& segments) const = 0;
  // Returns `bytes` of a rank's block, in place or copied to `scratch`.
  // Throws: what copy() throws.
  virtual const char* view(int rank, std::int64_t from, std::int64_t bytes,
                           char* scratch) const = 0;
};

// Blocks in a buffer of this process.
class BufferedBlocks final : public Blocks {
 public:
  // `blocks_WN`: contiguous, a row for each rank.
  explicit BufferedBlocks(const at::Tensor& blocks_WN, int world_size);

  void copy(int rank, const std::vector<Segment>& segments) const override;
  const char* view(int rank, std::int64_t from, std::int64_t bytes, char* scratch) const override;

 private:
  const char* const first_;
  const std::int64_t block_bytes_;
};

}  // namespace fsdp::internal
