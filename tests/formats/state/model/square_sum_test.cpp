// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/square_sum.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

SquareSum sum_of(const std::vector<double>& numbers) {
  SquareSum sum;
  sum.add(numbers);
  return sum;
}

TEST(SquareSum, the_root_is_the_norm) {
  EXPECT_EQ(SquareSum().root(), 0);
  EXPECT_EQ(sum_of({0, 0}).root(), 0);
  EXPECT_EQ(sum_of({3, -4}).root(), 5);
  EXPECT_EQ(sum_of(std::vector<double>(10000, 2)).root(), 200);
}

TEST(SquareSum, no_number_is_too_large_or_too_small) {
  EXPECT_DOUBLE_EQ(sum_of({3e300, -4e300}).root(), 5e300);
  EXPECT_DOUBLE_EQ(sum_of({3e-300, 4e-300, 0}).root(), 5e-300);
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(sum_of({3 * kLeast, 4 * kLeast}).root(), 5 * kLeast);
  EXPECT_EQ(sum_of({1, std::numeric_limits<double>::infinity()}).root(),
            std::numeric_limits<double>::infinity());
}

TEST(SquareSum, groups_of_any_size_add_up_in_any_order) {
  const std::vector<std::vector<double>> groups = {{3e200}, {1e-200, 1}, {0}, {4e200}};
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    SquareSum sum;
    for (const std::size_t i : order) sum.add(sum_of(groups[i]));
    EXPECT_DOUBLE_EQ(sum.root(), 5e200);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SquareSum, small_sums_are_not_lost_beside_a_large_one) {
  SquareSum sum;
  sum.add_sum(0x1p60);
  for (int i = 0; i < 1 << 20; ++i) sum.add_sum(64);  // each less than half a step of 2^60
  // sqrt(2^60 + 2^26) is 2^30 + 2^-5, rounded
  EXPECT_EQ(sum.root(), 0x1p30 + 0x1p-5);
}

TEST(SquareSum, pairs_of_floats) {
  const std::vector<float> a = {3, 4, 0};
  const std::vector<float> b = {3, 5, 2};
  const PairSquares squares =
      pair_squares(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
  EXPECT_EQ(squares.left, 25);
  EXPECT_EQ(squares.apart, 5);
  EXPECT_EQ(float_squares(std::as_bytes(std::span(b))), 38);
  const std::vector<std::uint16_t> codes = {0x3f80, 0xc000, 0x4040};  // 1, -2, 3
  EXPECT_EQ(bfloat16_squares(std::as_bytes(std::span(codes))), 14);
}

}  // namespace
}  // namespace fsdp::formats
