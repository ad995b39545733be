// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/shard_layout.h"

#include <algorithm>

namespace fsdp {
namespace {

// If there is a choice, padding may take at most one part in so many of a tensor's elements.
constexpr std::int64_t kPaddingPart = 8;

// Counts rows over `row_dims` dimensions.
void count_rows_over(ShardLayout& layout, int row_dims) {
  const auto split = layout.shape.begin() + row_dims;
  layout.row_dims = row_dims;
  layout.rows = 1;
  std::for_each(layout.shape.begin(), split, [&](std::int64_t size) { layout.rows *= size; });
  layout.row_numel = 1;
  std::for_each(split, layout.shape.end(), [&](std::int64_t size) { layout.row_numel *= size; });
  layout.chunk_rows = (layout.rows + layout.world_size - 1) / layout.world_size;
}

bool pads_little(const ShardLayout& layout) {
  const std::int64_t padding = layout.chunk_rows * layout.world_size - layout.rows;
  return padding * kPaddingPart < layout.rows;
}

}  // namespace

std::int64_t ShardLayout::first_row(int rank) const noexcept {
  return std::min(rows, rank * chunk_rows);
}

std::int64_t ShardLayout::rows_of(int rank) const noexcept {
  return std::min(rows, first_row(rank) + chunk_rows) - first_row(rank);
}

std::vector<std::int64_t> ShardLayout::shape_of(int rank) const {
  if (row_dims == 0 && rows_of(rank) == 1) return {};
  std::vector<std::int64_t> result{rows_of(rank)};
  result.insert(result.end(), shape.begin() + row_dims, shape.end());
  return result;
}

// See Note [rows].
ShardLayout shard_layout(std::span<const std::int64_t> shape, int world_size) {
  ShardLayout layout;
  layout.shape.assign(shape.begin(), shape.end());
  layout.world_size = world_size;
  const int dims = static_cast<int>(shape.size());
  count_rows_over(layout, std::min(dims, 1));
  if (layout.rows >= world_size || layout.numel() == 0) return layout;
  while (layout.row_dims < dims && !pads_little(layout))
    count_rows_over(layout, layout.row_dims + 1);
  return layout;
}

}  // namespace fsdp
