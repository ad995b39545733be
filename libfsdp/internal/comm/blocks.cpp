// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/blocks.h"

#include <cstring>
#include <utility>

namespace fsdp::internal {

Blocks::Blocks(const at::Tensor& blocks_WN, int world_size) {
  const auto* const first = static_cast<const char*>(blocks_WN.const_data_ptr());
  const std::int64_t bytes = static_cast<std::int64_t>(blocks_WN.nbytes()) / world_size;
  for (int rank = 0; rank < world_size; ++rank) here_.push_back(first + rank * bytes);
}

Blocks::Blocks(std::vector<const char*> here, Read read)
    : here_(std::move(here)), read_(std::move(read)) {}

void Blocks::copy(int rank, const std::vector<Segment>& segments) const {
  const char* const block = here_[static_cast<std::size_t>(rank)];
  if (block == nullptr) return read_(rank, segments);
  for (const Segment& segment : segments)
    std::memcpy(segment.to, block + segment.from, static_cast<std::size_t>(segment.bytes));
}

const char* Blocks::view(int rank, std::int64_t from, std::int64_t bytes, char* scratch) const {
  const char* const block = here_[static_cast<std::size_t>(rank)];
  if (block != nullptr) return block + from;
  read_(rank, {{from, bytes, scratch}});
  return scratch;
}

}  // namespace fsdp::internal
