// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/flat_range.h"

namespace fsdp::formats {
namespace {

class Cutter {
 public:
  explicit Cutter(std::span<const std::int64_t> shape)
      : shape_(shape), strides_(row_major_strides(shape)), at_{{}, {}} {
    at_.offset.assign(shape.size(), 0);
    at_.size.assign(shape.begin(), shape.end());
  }

  // Cuts elements begin to end out of the part of the tensor that the first `dim` dimensions of at_
  // select.
  void cut(std::size_t dim, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    if (dim == shape_.size()) {
      boxes.push_back(at_);
      return;
    }
    const std::int64_t row = strides_[dim];
    std::int64_t first = begin / row;
    const std::int64_t last = end / row;
    if (begin % row != 0) {
      const bool within = first == last;
      row_part(dim, first, begin % row, within ? end % row : row);
      if (within) return;
      ++first;
    }
    if (first < last) {
      at_.offset[dim] = first;
      at_.size[dim] = last - first;
      boxes.push_back(at_);
    }
    row_part(dim, last, 0, end % row);
    at_.offset[dim] = 0;
    at_.size[dim] = shape_[dim];
  }

  std::vector<Box> boxes;

 private:
  void row_part(std::size_t dim, std::int64_t index, std::int64_t begin, std::int64_t end) {
    at_.offset[dim] = index;
    at_.size[dim] = 1;
    cut(dim + 1, begin, end);
    at_.offset[dim] = 0;
    at_.size[dim] = shape_[dim];
  }

  std::span<const std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  Box at_;
};

}  // namespace

std::vector<Box> flat_range_boxes(std::span<const std::int64_t> shape, std::int64_t begin,
                                  std::int64_t end) {
  if (begin == end) return {};
  Cutter cutter(shape);
  cutter.cut(0, begin, end);
  return std::move(cutter.boxes);
}

}  // namespace fsdp::formats
