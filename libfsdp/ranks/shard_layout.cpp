// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/shard_layout.h"

#include <algorithm>
#include <cstddef>
#include <utility>

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

int ShardLayout::block() const noexcept {
  int result = 0;
  for (const Cut& cut : cuts) result = result * cut.parts + cut.part;
  return result;
}

int ShardLayout::block_count() const noexcept {
  int result = 1;
  for (const Cut& cut : cuts) result *= cut.parts;
  return result;
}

ShardLayout shard_layout(std::span<const std::int64_t> whole, std::vector<Cut> cuts,
                         int world_size) {
  std::vector<std::int64_t> shape(whole.begin(), whole.end());
  std::vector<std::int64_t> offset(whole.size(), 0);
  for (const Cut& cut : cuts) {
    const auto dim = static_cast<std::size_t>(cut.dim);
    const std::int64_t full = (shape[dim] + cut.parts - 1) / cut.parts;
    const std::int64_t first = std::min(shape[dim], cut.part * full);
    offset[dim] += first;
    shape[dim] = std::min(shape[dim], first + full) - first;
  }
  ShardLayout layout = shard_layout(shape, world_size);
  if (cuts.empty()) return layout;
  layout.cuts = std::move(cuts);
  layout.whole.assign(whole.begin(), whole.end());
  layout.offset = std::move(offset);
  return layout;
}

std::vector<ShardLayout> layouts_of_blocks(const ShardLayout& any) {
  std::vector<ShardLayout> result;
  for (int block = 0; block < any.block_count(); ++block) {
    std::vector<Cut> cuts = any.cuts;
    int rest = block;
    for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
      cut->part = rest % cut->parts;
      rest /= cut->parts;
    }
    result.push_back(shard_layout(any.whole_shape(), std::move(cuts), any.world_size));
  }
  return result;
}

}  // namespace fsdp
