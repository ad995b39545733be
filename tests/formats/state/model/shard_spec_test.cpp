// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/shard_spec.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> counts(std::int64_t rows, std::int64_t world_size) {
  const RowCut cut = cut_rows(rows, world_size);
  std::vector<std::int64_t> all;
  for (std::int64_t rank = 0; rank < world_size; ++rank) all.push_back(cut.count(rank));
  return all;
}

// The result of torch.chunk, and of DTensor's Shard(0).
TEST(ShardSpec, rows_are_cut_as_torch_chunk_cuts_them) {
  EXPECT_THAT(counts(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts(7, 3), ElementsAre(3, 3, 1));
  EXPECT_THAT(counts(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(counts(9, 8), ElementsAre(2, 2, 2, 2, 1, 0, 0, 0));
  EXPECT_THAT(counts(1, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(counts(0, 2), ElementsAre(0, 0));
  EXPECT_THAT(counts(6, 1), ElementsAre(6));
}

TEST(ShardSpec, ranks_tile_the_rows_whatever_their_number) {
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (std::int64_t world_size = 1; world_size < 45; ++world_size) {
      const RowCut cut = cut_rows(rows, world_size);
      std::int64_t at = 0;
      std::int64_t with_rows = 0;
      for (std::int64_t rank = 0; rank < world_size; ++rank) {
        ASSERT_EQ(cut.begin(rank), at) << rows << " rows, rank " << rank << " of " << world_size;
        at += cut.count(rank);
        with_rows += cut.count(rank) > 0 ? 1 : 0;
      }
      ASSERT_EQ(at, rows);
      ASSERT_EQ(with_rows, cut.ranks_with_rows);
      ASSERT_LE(cut.ranks_with_rows, world_size);
    }
  }
}

TEST(ShardSpec, rows_near_two_to_the_63_do_not_overflow) {
  const RowCut cut = cut_rows(INT64_MAX, kMaxWorldSize);
  EXPECT_EQ(cut.begin(kMaxWorldSize - 1) + cut.count(kMaxWorldSize - 1), INT64_MAX);
}

TEST(ShardSpec, a_shard_keeps_the_other_dimensions) {
  const std::vector<std::int64_t> shape = {7, 2, 3};
  const Box box = shard_box(shape, cut_rows(7, 3), 2);
  EXPECT_THAT(box.offset, ElementsAre(6, 0, 0));
  EXPECT_THAT(box.size, ElementsAre(1, 2, 3));
}

// Returns the flat positions of a box's elements, in its own order.
std::vector<std::int64_t> positions(std::span<const std::int64_t> shape, const Box& box) {
  const std::vector<std::int64_t> strides = row_major_strides(shape);
  std::vector<std::int64_t> result{0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t before : result) {
      for (std::int64_t i = 0; i < box.size[d]; ++i)
        next.push_back(before + (box.offset[d] + i) * strides[d]);
    }
    result = std::move(next);
  }
  return result;
}

TEST(ShardSpec, rows_counted_over_several_dimensions_are_a_few_boxes) {
  const std::vector<std::int64_t> shape = {3, 4, 5};
  const auto texts = [&](std::size_t row_dims, std::int64_t first, std::int64_t count) {
    std::vector<std::string> result;
    for (const Box& box : boxes_of_rows(shape, row_dims, first, count))
      result.push_back(box_text(box.view()));
    return result;
  };
  EXPECT_THAT(texts(1, 1, 2), ElementsAre("[1:3, 0:4, 0:5]"));
  EXPECT_THAT(texts(2, 4, 8), ElementsAre("[1:3, 0:4, 0:5]"));
  EXPECT_THAT(texts(2, 2, 7), ElementsAre("[0:1, 2:4, 0:5]", "[1:2, 0:4, 0:5]", "[2:3, 0:1, 0:5]"));
  EXPECT_THAT(texts(3, 7, 46), ElementsAre("[0:1, 1:2, 2:5]", "[0:1, 2:4, 0:5]", "[1:2, 0:4, 0:5]",
                                           "[2:3, 0:2, 0:5]", "[2:3, 2:3, 0:3]"));
  EXPECT_THAT(boxes_of_rows({}, 0, 0, 1), testing::SizeIs(1));
}

// Every range of rows of every small shape, element by element.
TEST(ShardSpec, boxes_of_rows_are_their_elements_in_order) {
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {}, {5}, {3, 2}, {1, 4}, {2, 1, 3}, {2, 3, 4}, {1, 1, 1}, {2, 2, 2, 2}, {2, 1, 3, 2}}) {
    for (std::size_t row_dims = 0; row_dims <= shape.size(); ++row_dims) {
      const std::int64_t rows = count_rows(shape, row_dims);
      const auto row = static_cast<std::int64_t>(volume({shape, shape})) / rows;
      for (std::int64_t first = 0; first < rows; ++first) {
        for (std::int64_t count = 1; first + count <= rows; ++count) {
          const std::vector<Box> boxes = boxes_of_rows(shape, row_dims, first, count);
          ASSERT_LE(boxes.size(), std::max<std::size_t>(1, 2 * row_dims - 1));
          std::int64_t at = first * row;
          for (const Box& box : boxes) {
            for (const std::int64_t position : positions(shape, box))
              ASSERT_EQ(position, at++) << box_text(whole_box(shape).view()) << ", " << row_dims;
          }
          ASSERT_EQ(at, (first + count) * row);
        }
      }
    }
  }
}

TEST(ShardSpec, a_world_size_out_of_range_names_the_range) {
  for (const std::int64_t world_size : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{65537},
                                        std::int64_t{1'000'000'000}, INT64_MIN, INT64_MAX}) {
    test::expect_error(ErrorCode::kUsage, "expected 1 to 65536",
                       [&] { check_world_size(world_size); });
  }
  EXPECT_NO_THROW(check_world_size(1));
  EXPECT_NO_THROW(check_world_size(65536));
}

}  // namespace
}  // namespace fsdp::formats
