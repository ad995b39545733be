// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/cache_use.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

constexpr std::size_t kBlock = 2U << 20U;
constexpr double kQuick = kBlock / 10e9;
constexpr double kSlow = kBlock / 0.5e9;

TEST(CopyPace, nothing_is_slow_before_it_was_tried) {
  EXPECT_FALSE(CopyPace().slow());
}

TEST(CopyPace, one_slow_block_at_the_beginning_is_enough) {
  CopyPace pace;
  pace.add(kBlock, kSlow);
  EXPECT_TRUE(pace.slow());
}

TEST(CopyPace, after_quick_blocks_it_takes_two_slow_ones) {
  CopyPace pace;
  for (int i = 0; i < 10; ++i) pace.add(kBlock, kQuick);
  pace.add(kBlock, kSlow);
  EXPECT_FALSE(pace.slow());
  pace.add(kBlock, kSlow);
  EXPECT_TRUE(pace.slow());
}

TEST(CopyPace, slow_blocks_far_apart_are_forgotten) {
  CopyPace pace;
  for (int i = 0; i < 50; ++i) {
    for (int quick = 0; quick < 10; ++quick) pace.add(kBlock, kQuick);
    pace.add(kBlock, kSlow);
    EXPECT_FALSE(pace.slow());
  }
}

}  // namespace
}  // namespace fsdp::formats
