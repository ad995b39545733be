// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/shard_layout.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp {
namespace {

using Shape = std::vector<std::int64_t>;

struct Cut {
  int row_dims;
  std::int64_t share;  // elements
  bool operator==(const Cut&) const = default;
};

void PrintTo(const Cut& cut, std::ostream* out) {
  *out << cut.share << " elements, rows over " << cut.row_dims << " dimensions";
}

Cut cut_of(const Shape& shape, int world_size) {
  const ShardLayout layout = shard_layout(shape, world_size);
  return {layout.row_dims, layout.padded_numel()};
}

TEST(ShardLayout, dimension_0_is_cut_where_it_has_a_row_for_each_rank) {
  EXPECT_EQ(cut_of({64, 3}, 64), (Cut{1, 3}));
  EXPECT_EQ(cut_of({65, 3}, 64), (Cut{1, 6}));
  EXPECT_EQ(cut_of({7, 5, 2}, 3), (Cut{1, 30}));
  // A few ranks without a row cost little.
  EXPECT_EQ(cut_of({60, 4096}, 64), (Cut{1, 4096}));
}

TEST(ShardLayout, a_stack_takes_what_it_would_as_one_matrix) {
  // 8 experts of 4096 x 1024: 512 rows of 1024 elements.
  EXPECT_EQ(cut_of({8, 4096, 1024}, 64), (Cut{2, 512 * 1024}));
  EXPECT_EQ(cut_of({8, 4096, 1024}, 1024), (Cut{2, 32 * 1024}));
  EXPECT_EQ(cut_of({1, 197, 768}, 64), (Cut{3, 2364}));  // 4 rows each would be a third too much
  EXPECT_EQ(cut_of({1, 4096, 768}, 64), (Cut{2, 64 * 768}));
  EXPECT_EQ(cut_of({1, 1, 1 << 20}, 1024), (Cut{3, 1024}));
}

TEST(ShardLayout, small_tensors_end_as_elements) {
  EXPECT_EQ(cut_of({3, 5, 7}, 4), (Cut{2, 28}));  // 15 rows, of which each has 4
  EXPECT_EQ(cut_of({3, 5, 7}, 64), (Cut{3, 2}));  // 105 elements
  EXPECT_EQ(cut_of({3, 5, 7}, 1024), (Cut{3, 1}));
  for (const int world_size : {2, 64, 1024}) {
    EXPECT_EQ(cut_of({1}, world_size), (Cut{1, 1}));
    EXPECT_EQ(cut_of({}, world_size), (Cut{0, 1}));
    EXPECT_EQ(cut_of({0}, world_size), (Cut{1, 0}));
    EXPECT_EQ(cut_of({0, 5}, world_size), (Cut{1, 0}));
    EXPECT_EQ(cut_of({5, 0, 3}, world_size), (Cut{1, 0}));
  }
}

TEST(ShardLayout, one_rank_has_every_tensor_as_it_is) {
  for (const Shape& shape : {Shape{}, {0}, {1}, {3, 5}, {1, 2, 3}, {4, 0}}) {
    const ShardLayout layout = shard_layout(shape, 1);
    EXPECT_EQ(layout.shape_of(0), shape);
    EXPECT_LE(layout.row_dims, 1);
  }
}

// For any shape: shares follow one another, are whole rows, and take no more memory than they
// need.
TEST(ShardLayout, shares_are_the_tensor_and_little_more) {
  std::mt19937 random(20);
  const auto below = [&](int end) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(end));
  };
  for (int i = 0; i < 20000; ++i) {
    Shape shape(static_cast<std::size_t>(below(6)));
    for (std::int64_t& size : shape) size = below(20) == 0 ? 0 : below(3) == 0 ? 1 : 1 + below(12);
    const int world_size = 1 + static_cast<int>(below(i % 4 == 0 ? 1024 : 9));
    const ShardLayout layout = shard_layout(shape, world_size);
    SCOPED_TRACE(::testing::PrintToString(shape) + " on " + std::to_string(world_size));
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    ASSERT_EQ(layout.numel(), numel);
    std::int64_t at = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      ASSERT_EQ(std::min(numel, rank * layout.padded_numel()), at);
      ASSERT_EQ(layout.first_row(rank) * layout.row_numel, at);
      std::int64_t product = 1;
      for (const std::int64_t size : layout.shape_of(rank)) product *= size;
      ASSERT_EQ(product, layout.numel_of(rank));
      at += layout.numel_of(rank);
    }
    ASSERT_EQ(at, numel);
    if (!shape.empty() && shape[0] >= world_size) {
      ASSERT_EQ(layout.row_dims, 1);  // like FSDP2
      continue;
    }
    const std::int64_t least = (numel + world_size - 1) / world_size;
    if (layout.row_dims == static_cast<int>(shape.size())) {
      ASSERT_EQ(layout.padded_numel(), least);
    } else {
      ASSERT_LE(8 * layout.padded_numel() * world_size, 9 * numel);
    }
  }
}

}  // namespace
}  // namespace fsdp
