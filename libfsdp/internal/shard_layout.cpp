// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/shard_layout.h"

#include <algorithm>

namespace fsdp {

std::int64_t ShardLayout::first_row(int rank) const noexcept {
  return std::min(rows, rank * chunk_rows);
}

std::int64_t ShardLayout::rows_of(int rank) const noexcept {
  return std::min(rows, first_row(rank) + chunk_rows) - first_row(rank);
}

std::vector<std::int64_t> ShardLayout::shape_of(int rank) const {
  std::vector<std::int64_t> result = shape;
  if (!result.empty()) {
    result[0] = rows_of(rank);
  } else if (rows_of(rank) == 0) {
    result = {0};
  }
  return result;
}

ShardLayout shard_layout(std::span<const std::int64_t> shape, int world_size) {
  ShardLayout layout;
  layout.shape.assign(shape.begin(), shape.end());
  layout.world_size = world_size;
  layout.rows = shape.empty() ? 1 : shape[0];
  layout.row_numel = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) layout.row_numel *= shape[d];
  layout.chunk_rows = (layout.rows + world_size - 1) / world_size;
  return layout;
}

}  // namespace fsdp
