// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/block_grid.h"

#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats::arrays {
namespace {

BlockGrid grid(std::uint64_t matrices, std::uint64_t rows, std::uint64_t columns,
               std::uint64_t block_rows, std::uint64_t block_columns) {
  BlockGrid out;
  out.matrices = matrices;
  out.rows = rows;
  out.columns = columns;
  out.block_rows = block_rows;
  out.block_columns = block_columns;
  return out;
}

TEST(BlockGrid, the_last_blocks_of_a_matrix_are_smaller) {
  const BlockGrid one = grid(2, 5, 7, 2, 3);
  EXPECT_EQ(one.scale_rows(), 3U);
  EXPECT_EQ(one.scale_columns(), 3U);
  EXPECT_EQ(one.block_of(0, 4, 6), 8U);
  EXPECT_EQ(one.block_of(1, 0, 2), 9U);
  EXPECT_EQ(grid(1, 4, 6, 2, 3).scale_rows(), 2U);
}

// Every range, through runs of every length: each element is met once, in order, and its block lies
// among those of its run, of which there are no more than elements.
TEST(BlockGrid, runs_and_blocks_make_up_any_range) {
  for (const BlockGrid& one : {grid(2, 5, 7, 2, 3), grid(3, 1, 4, 1, 4), grid(1, 6, 2, 9, 1)}) {
    const std::uint64_t numel = one.matrices * one.rows * one.columns;
    for (std::uint64_t most = 1; most <= numel; ++most) {
      for (std::uint64_t first = 0; first < numel; ++first) {
        std::uint64_t at = first;
        for_each_run(one, first, numel - first, most, [&](const GridRun& run) {
          ASSERT_LE(run.numel(), most);
          ASSERT_LE(run.block_count(one), run.numel());
          const std::uint64_t begin = at;
          for_each_block(one, run, [&](std::uint64_t in, std::uint64_t count, std::uint64_t block) {
            ASSERT_EQ(begin + in, at);
            for (std::uint64_t i = 0; i < count; ++i, ++at) {
              const std::uint64_t row = at / one.columns;
              ASSERT_EQ(block, one.block_of(row / one.rows, row % one.rows, at % one.columns));
            }
            ASSERT_LT(block - run.first_block(one), run.block_count(one));
          });
        });
        ASSERT_EQ(at, numel);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::formats::arrays
