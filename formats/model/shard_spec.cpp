// SPDX-License-Identifier: Apache-2.0
#include "formats/model/shard_spec.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {

void check_world_size(std::int64_t world_size) {
  if (world_size >= 1 && world_size <= kMaxWorldSize) return;
  throw Error(ErrorCode::kUsage,
              cat("the world size is ", world_size, ", expected 1 to ", kMaxWorldSize));
}

std::int64_t RowCut::begin(std::int64_t rank) const {
  return rank >= ranks_with_rows ? rows : rank * rows_per_rank;
}

std::int64_t RowCut::count(std::int64_t rank) const {
  return rank >= ranks_with_rows ? 0 : std::min(rows_per_rank, rows - rank * rows_per_rank);
}

RowCut cut_rows(std::int64_t rows, std::int64_t world_size) {
  RowCut cut;
  cut.rows = rows;
  if (rows == 0) return cut;
  // Not (rows + n - 1) / n: a tensor of a hostile file can have nearly 2^63 rows.
  cut.rows_per_rank = (rows - 1) / world_size + 1;
  cut.ranks_with_rows = (rows - 1) / cut.rows_per_rank + 1;
  return cut;
}

Box shard_box(std::span<const std::int64_t> shape, const RowCut& cut, std::int64_t rank) {
  Box box = whole_box(shape);
  box.offset[0] = cut.begin(rank);
  box.size[0] = cut.count(rank);
  return box;
}

}  // namespace fsdp::formats
