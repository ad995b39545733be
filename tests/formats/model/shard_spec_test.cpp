// SPDX-License-Identifier: Apache-2.0
#include "formats/model/shard_spec.h"

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

// What torch.chunk gives, and DTensor's Shard(0).
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
