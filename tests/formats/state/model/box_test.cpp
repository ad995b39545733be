// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/box.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(Box, intersection_is_the_part_both_share) {
  const Box a{{0, 4}, {4, 4}};
  const Box b{{2, 0}, {10, 6}};
  const auto shared = intersect(a.view(), b.view());
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->offset, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(shared->size, (std::vector<std::int64_t>{2, 2}));
}

TEST(Box, boxes_that_only_touch_do_not_meet) {
  EXPECT_FALSE(intersect(Box{{0}, {4}}.view(), Box{{4}, {4}}.view()));
  EXPECT_FALSE(intersect(Box{{0, 0}, {4, 0}}.view(), Box{{0, 0}, {4, 4}}.view()));
}

TEST(Box, rank_0_always_meets_and_holds_one_element) {
  EXPECT_TRUE(intersect(Box{}.view(), Box{}.view()));
  EXPECT_EQ(volume(Box{}.view()), 1U);
}

TEST(Box, text_is_a_range_per_dimension) {
  EXPECT_EQ(box_text(Box{{0, 8}, {4, 8}}.view()), "[0:4, 8:16]");
  EXPECT_EQ(box_text(Box{}.view()), "[]");
}

TEST(Box, row_major_strides_skip_empty_dimensions_as_pytorch_does) {
  EXPECT_EQ(row_major_strides(std::vector<std::int64_t>{2, 3, 4}),
            (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ(row_major_strides(std::vector<std::int64_t>{2, 0, 4}),
            (std::vector<std::int64_t>{4, 4, 1}));
}

}  // namespace
}  // namespace fsdp::formats
