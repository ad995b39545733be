// SPDX-License-Identifier: Apache-2.0
// The blocks of all ranks after a collective, on the CPU, in this process or in others.
#pragma once

#include <cstdint>
#include <functional>
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
  // Copies parts of a rank's block, which lies in another process.
  using Read = std::function<void(int rank, const std::vector<Segment>& segments)>;

  // `blocks_WN`: contiguous, a row for each rank.
  Blocks(const at::Tensor& blocks_WN, int world_size);
  // `here`: by rank, null for a block that `read` has to be called for.
  Blocks(std::vector<const char*> here, Read read);

  // Copies parts of a rank's block.
  // Throws: LostOffer (offer_board.h) if the block lies in another process that has ended.
  void copy(int rank, const std::vector<Segment>& segments) const;
  // Returns `bytes` of a rank's block, in place or copied to `scratch`.
  // Throws: what copy() throws.
  const char* view(int rank, std::int64_t from, std::int64_t bytes, char* scratch) const;

 private:
  std::vector<const char*> here_;
  Read read_;
};

}  // namespace fsdp::internal
