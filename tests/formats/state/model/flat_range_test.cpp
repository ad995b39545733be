// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/flat_range.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using Shape = std::vector<std::int64_t>;

// Returns the positions of a box's elements in the flattened tensor, in row-major order.
std::vector<std::int64_t> elements(const Box& box, const Shape& shape) {
  const auto strides = row_major_strides(shape);
  std::vector<std::int64_t> out;
  std::vector<std::int64_t> at(shape.size(), 0);
  for (std::uint64_t n = 0; n < volume(box.view()); ++n) {
    std::int64_t position = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) position += (box.offset[d] + at[d]) * strides[d];
    out.push_back(position);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.size[d]) break;
      at[d] = 0;
    }
  }
  return out;
}

TEST(FlatRange, boxes_are_the_elements_of_the_range_in_order_and_few) {
  const std::vector<Shape> shapes = {{}, {1}, {7}, {3, 5}, {1, 6}, {6, 1}, {2, 3, 4}, {3, 1, 2, 2}};
  for (const Shape& shape : shapes) {
    const auto numel = static_cast<std::int64_t>(volume(whole_box(shape).view()));
    for (std::int64_t begin = 0; begin <= numel; ++begin) {
      for (std::int64_t end = begin; end <= numel; ++end) {
        std::vector<std::int64_t> found;
        const auto boxes = flat_range_boxes(shape, begin, end);
        for (const Box& box : boxes) {
          const auto inside = elements(box, shape);
          found.insert(found.end(), inside.begin(), inside.end());
        }
        std::vector<std::int64_t> wanted;
        for (std::int64_t i = begin; i < end; ++i) wanted.push_back(i);
        EXPECT_EQ(found, wanted) << begin << " to " << end;
        EXPECT_LE(boxes.size(), std::max<std::size_t>(1, 2 * shape.size() - 1));
      }
    }
  }
}

TEST(FlatRange, an_empty_tensor_has_no_boxes) {
  EXPECT_TRUE(flat_range_boxes(Shape{4, 0, 3}, 0, 0).empty());
}

TEST(FlatRange, whole_rows_are_one_box) {
  const auto boxes = flat_range_boxes(Shape{5, 3, 2}, 6, 24);
  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_EQ(box_text(boxes[0].view()), "[1:4, 0:3, 0:2]");
}

}  // namespace
}  // namespace fsdp::formats
