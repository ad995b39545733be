// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/blocks.h"

#include <cstring>

namespace fsdp::internal {

BufferedBlocks::BufferedBlocks(const at::Tensor& blocks_WN, int world_size)
    : first_(static_cast<const char*>(blocks_WN.const_data_ptr())),
      block_bytes_(static_cast<std::int64_t>(blocks_WN.nbytes()) / world_size) {}

void BufferedBlocks::copy(int rank, const std::vector<Segment>& segments) const {
  const char* const block = first_ + rank * block_bytes_;
  for (const Segment& segment : segments)
    std::memcpy(segment.to, block + segment.from, static_cast<std::size_t>(segment.bytes));
}

const char* BufferedBlocks::view(int rank, std::int64_t from, std::int64_t, char*) const {
  return first_ + rank * block_bytes_ + from;
}

}  // namespace fsdp::internal
