// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/shard_spec.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Adds the boxes of rows [begin, end) within `box` from dimension `dim` on.
class RowBoxes {
 public:
  RowBoxes(std::span<const std::int64_t> shape, std::size_t row_dims)
      : shape_(shape), row_dims_(row_dims) {}

  void add(Box box, std::size_t dim, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    if (dim == row_dims_) {
      boxes_.push_back(std::move(box));
      return;
    }
    // The number of rows at one position of this dimension.
    const std::int64_t inner = count_rows(shape_.subspan(dim + 1), row_dims_ - dim - 1);
    const std::int64_t first = begin / inner;
    const std::int64_t last = (end - 1) / inner;
    const bool cut_front = begin % inner != 0;
    const bool cut_back = end % inner != 0;
    if (first == last && (cut_front || cut_back))
      return add(at(box, dim, first, 1), dim + 1, begin - first * inner, end - first * inner);
    const std::int64_t whole = first + (cut_front ? 1 : 0);
    const std::int64_t whole_end = last + (cut_back ? 0 : 1);
    if (cut_front) add(at(box, dim, first, 1), dim + 1, begin - first * inner, inner);
    if (whole < whole_end) boxes_.push_back(at(box, dim, whole, whole_end - whole));
    if (cut_back) add(at(box, dim, last, 1), dim + 1, 0, end - last * inner);
  }

  std::vector<Box> take() { return std::move(boxes_); }

 private:
  static Box at(Box box, std::size_t dim, std::int64_t offset, std::int64_t size) {
    box.offset[dim] = offset;
    box.size[dim] = size;
    return box;
  }

  const std::span<const std::int64_t> shape_;
  const std::size_t row_dims_;
  std::vector<Box> boxes_;
};

}  // namespace

void check_world_size(std::int64_t world_size) {
  if (world_size >= 1 && world_size <= kMaxWorldSize) return;
  throw Error(ErrorCode::kUsage, "the world size is ", world_size, ", expected 1 to ",
              kMaxWorldSize);
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

std::int64_t count_rows(std::span<const std::int64_t> shape, std::size_t row_dims) {
  std::int64_t rows = 1;
  for (const std::int64_t size : shape.first(row_dims)) rows *= size;
  return rows;
}

std::vector<Box> boxes_of_rows(std::span<const std::int64_t> shape, std::size_t row_dims,
                               std::int64_t first, std::int64_t count) {
  RowBoxes boxes(shape, row_dims);
  boxes.add(whole_box(shape), 0, first, first + count);
  return boxes.take();
}

}  // namespace fsdp::formats
