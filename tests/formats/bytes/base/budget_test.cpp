// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/budget.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

// More than a thread keeps to itself.
constexpr std::size_t kMuch = 1U << 20U;

TEST(Budget, without_a_scope_nothing_is_limited) {
  EXPECT_EQ(memory_left(), UINT64_MAX);
  charge_memory(std::size_t{1} << 40U);
  release_memory(std::size_t{1} << 40U);
  charge_expansion(UINT64_MAX / 4);
  charge_pickle(UINT64_MAX / 4);
}

TEST(Budget, memory_beyond_it_is_refused_and_not_counted) {
  const BudgetScope scope({8 * kMuch, 0, 0});
  EXPECT_EQ(memory_left(), 8 * kMuch);
  for (int i = 0; i < 8; ++i) charge_memory(kMuch);
  EXPECT_EQ(memory_left(), 0U);
  EXPECT_THROW(charge_memory(kMuch), OverBudget);
  release_memory(kMuch);
  charge_memory(kMuch);
  EXPECT_THROW(charge_memory(SIZE_MAX / 2), OverBudget);
  for (int i = 0; i < 8; ++i) release_memory(kMuch);
}

TEST(Budget, many_small_pieces_of_several_threads_count) {
  const BudgetScope scope({16 * kMuch, 0, 0});
  const auto work = [] {
    for (std::size_t i = 0; i < kMuch / 64; ++i) charge_memory(128);
  };
  {
    std::jthread a(work);
    std::jthread b(work);
  }
  EXPECT_NEAR(static_cast<double>(memory_left()), 12.0 * kMuch, 0.2 * kMuch);
  release_memory(4 * kMuch);
}

TEST(Budget, what_was_taken_before_is_not_part_of_it) {
  charge_memory(64 * kMuch);
  {
    const BudgetScope scope({2 * kMuch, 0, 0});
    charge_memory(kMuch);
    EXPECT_THROW(charge_memory(2 * kMuch), OverBudget);
    release_memory(kMuch);
  }
  EXPECT_EQ(memory_left(), UINT64_MAX);
  release_memory(64 * kMuch);
}

TEST(Budget, a_charge_lasts_as_long_as_it_lives) {
  const BudgetScope scope({8 * kMuch, 0, 0});
  {
    MemoryCharge window;
    window.grow_to(3 * kMuch);
    window.grow_to(kMuch);
    window.grow_to(5 * kMuch);
    EXPECT_EQ(memory_left(), 3 * kMuch);
    EXPECT_THROW(window.grow_to(16 * kMuch), OverBudget);
  }
  EXPECT_EQ(memory_left(), 8 * kMuch);
}

TEST(Budget, compressed_data_and_pickles_come_so_far) {
  const BudgetScope scope({0, 1536, 40});
  charge_expansion(1000);
  charge_expansion(536);
  EXPECT_THAT([] { charge_expansion(1); }, testing::ThrowsMessage<OverWork>(testing::HasSubstr(
                                               "compressed data expand to more than 1.5 KiB")));
  charge_pickle(40);
  EXPECT_THAT([] { charge_pickle(1); }, testing::ThrowsMessage<OverWork>(testing::HasSubstr(
                                            "all pickles together have more than 40 B")));
}

}  // namespace
}  // namespace fsdp::formats
