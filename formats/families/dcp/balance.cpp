// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/balance.h"

namespace fsdp::formats::dcp {

Balance::Balance(std::int64_t world_size) {
  for (std::int64_t rank = 1; rank < world_size; ++rank) others_.emplace(0, rank);
}

std::int64_t Balance::place(std::uint64_t bytes) {
  const std::uint64_t weight = bytes == 0 ? 1 : bytes;
  if (others_.empty() || first_ <= others_.top().first) {
    first_ += weight;
    return 0;
  }
  auto [load, rank] = others_.top();
  others_.pop();
  others_.emplace(load + weight, rank);
  return rank;
}

}  // namespace fsdp::formats::dcp
