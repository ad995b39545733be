// SPDX-License-Identifier: Apache-2.0
// FSDP's rule for cutting a tensor over ranks: along dimension 0, by the rule of torch.chunk; or
// along some leading dimensions flattened into one.  Integers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/state/model/box.h"

namespace fsdp::formats {

// The most ranks of an output: each gets a file of its own.
inline constexpr std::int64_t kMaxWorldSize = 65536;

// Throws: kUsage naming the range if `world_size` is not in [1, kMaxWorldSize].
void check_world_size(std::int64_t world_size);

// The cut of `rows` rows over `world_size` ranks: each rank takes ceil(rows / world_size) of them
// until none are left, so the last one that has any may have fewer, and ranks after it have none.
// Requires: rows >= 0, world_size >= 1.
struct RowCut {
  std::int64_t rows = 0;
  std::int64_t rows_per_rank = 0;
  std::int64_t ranks_with_rows = 0;
  // Returns the first row of `rank`; `rows` for a rank without any.
  std::int64_t begin(std::int64_t rank) const;
  // Returns the number of rows of `rank`.
  std::int64_t count(std::int64_t rank) const;
};
RowCut cut_rows(std::int64_t rows, std::int64_t world_size);

// Returns the part of a tensor of that shape that `rank` holds.
// Requires: rank >= 1, no empty dimension, 0 <= rank < cut.ranks_with_rows.
Box shard_box(std::span<const std::int64_t> shape, const RowCut& cut, std::int64_t rank);

// Counts rows: each position in the first `row_dims` dimensions, with the last one running fastest,
// is a row of the elements in the remaining dimensions.  Without such dimensions there is one row.
std::int64_t count_rows(std::span<const std::int64_t> shape, std::size_t row_dims);
// Returns the boxes of such rows [first, first + count), in the order of the rows: at most
// 2 * row_dims - 1.
// Requires: row_dims <= shape.size(), no empty dimension, 0 <= first, count >= 1, and the tensor
// has these rows.
std::vector<Box> boxes_of_rows(std::span<const std::int64_t> shape, std::size_t row_dims,
                               std::int64_t first, std::int64_t count);

}  // namespace fsdp::formats
