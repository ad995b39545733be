// SPDX-License-Identifier: Apache-2.0
// Figures by hand; tests/interop/check_values.py compares them with PyTorch.
#include "formats/state/model/tensor_stats.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

template <typename T>
TensorStats of(DType dtype, const std::vector<T>& numbers) {
  return stats_of(dtype, std::as_bytes(std::span(numbers)));
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(TensorStats, figures_are_of_finite_elements_alone) {
  const TensorStats stats =
      of<float>(DType::kFloat32, {kNan, 1, -kInf, 3, 0, -0.0F, kInf, kInf, -4});
  EXPECT_EQ(stats.count, 9U);
  EXPECT_EQ(stats.nan, 1U);
  EXPECT_EQ(stats.positive_infinity, 2U);
  EXPECT_EQ(stats.negative_infinity, 1U);
  EXPECT_EQ(stats.zeros, 2U);
  EXPECT_EQ(stats.min, -4);
  EXPECT_EQ(stats.max, 3);
  EXPECT_EQ(mean_of(DType::kFloat32, stats), 0);
  EXPECT_DOUBLE_EQ(*std_of(DType::kFloat32, stats), std::sqrt(26.0 / 4));
  EXPECT_DOUBLE_EQ(*rms_of(DType::kFloat32, stats), std::sqrt(26.0 / 5));
}

TEST(TensorStats, nothing_finite_has_no_figures) {
  for (const auto& numbers : {std::vector<float>{}, std::vector<float>{kNan, kInf}}) {
    const TensorStats stats = of(DType::kFloat32, numbers);
    EXPECT_EQ(stats.finite(), 0U);
    EXPECT_FALSE(mean_of(DType::kFloat32, stats));
    EXPECT_FALSE(std_of(DType::kFloat32, stats));
    EXPECT_FALSE(rms_of(DType::kFloat32, stats));
  }
  EXPECT_FALSE(std_of(DType::kFloat32, of<float>(DType::kFloat32, {2})));
}

TEST(TensorStats, integers_of_64_bits_keep_their_extremes_exact) {
  const TensorStats s = of<std::int64_t>(DType::kInt64, {INT64_MIN, INT64_MAX - 1, 0});
  EXPECT_EQ(from_ordered(s.ordered_min), INT64_MIN);
  EXPECT_EQ(from_ordered(s.ordered_max), INT64_MAX - 1);
  const TensorStats u = of<std::uint64_t>(DType::kUInt64, {UINT64_MAX - 1, 7});
  EXPECT_EQ(u.ordered_max, UINT64_MAX - 1);
  EXPECT_EQ(u.ordered_min, 7U);
}

TEST(TensorStats, a_small_spread_around_a_large_mean_is_not_lost) {
  // A constant has no spread at all, whatever its value.
  EXPECT_EQ(std_of(DType::kFloat32, of(DType::kFloat32, std::vector<float>(100'000, 0.1F))), 0);
  std::vector<double> numbers(100'000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 1e9 + static_cast<double>(i % 2);
  EXPECT_NEAR(*std_of(DType::kFloat64, of(DType::kFloat64, numbers)),
              0.5 * std::sqrt(1e5 / (1e5 - 1)), 1e-9);
}

TEST(TensorStats, blocks_in_any_order_give_the_same_bits) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(10 * kStatsGroup + 123);
  for (float& number : numbers) number = normal(random) * 1e3F;
  numbers[5000] = kNan;
  const TensorStats whole = of(DType::kFloat32, numbers);
  std::vector<std::size_t> order;
  for (std::size_t at = 0; at < numbers.size(); at += 2 * kStatsGroup) order.push_back(at);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    StatsJoiner joiner;
    for (const std::size_t at : order) {
      const auto part =
          std::span(numbers).subspan(at, std::min(2 * kStatsGroup, numbers.size() - at));
      joiner.add(DType::kFloat32, at, stats_of(DType::kFloat32, std::as_bytes(part)));
    }
    // Joined group by group as well: close to the whole, but not bit for bit.
    EXPECT_EQ(joiner.total().count, whole.count);
    EXPECT_EQ(joiner.total().nan, 1U);
    EXPECT_NEAR(*mean_of(DType::kFloat32, joiner.total()), *mean_of(DType::kFloat32, whole), 1e-12);
    static double first = 0;
    const double spread = *std_of(DType::kFloat32, joiner.total());
    if (round == 0) first = spread;
    EXPECT_EQ(spread, first);
  }
}

TEST(TensorStats, complex_numbers_have_a_size_and_bools_are_0_and_1) {
  const TensorStats c = of<float>(DType::kComplex64, {3, 4, 0, 0, kNan, kInf, kInf, 0});
  EXPECT_EQ(c.count, 4U);
  EXPECT_EQ(c.zeros, 1U);
  EXPECT_EQ(c.nan, 1U);
  EXPECT_EQ(c.infinite(), 1U);
  EXPECT_DOUBLE_EQ(*rms_of(DType::kComplex64, c), std::sqrt(25.0 / 2));
  EXPECT_FALSE(mean_of(DType::kComplex64, c));
  const TensorStats b = of<std::uint8_t>(DType::kBool, {1, 0, 2, 0});
  EXPECT_EQ(b.zeros, 2U);
  EXPECT_EQ(b.max, 1);
  EXPECT_EQ(mean_of(DType::kBool, b), 0.5);
}

TEST(TensorStats, quantized_and_packed_types_are_counted_alone) {
  const TensorStats stats = of<std::uint8_t>(DType::kQUInt4x2, {0, 1, 2});
  EXPECT_EQ(stats.count, 3U);
  EXPECT_EQ(stats.zeros, 0U);
  EXPECT_FALSE(mean_of(DType::kQUInt4x2, stats));
}

TEST(TensorStats, each_value_of_a_packed_float_counts) {
  // 1, 6, -2, 0.
  const TensorStats stats = of<std::uint8_t>(DType::kFloat4E2M1FNx2, {0x72, 0x0C});
  EXPECT_EQ(stats.count, 4U);
  EXPECT_EQ(stats.zeros, 1U);
  EXPECT_EQ(stats.min, -2);
  EXPECT_EQ(stats.max, 6);
  EXPECT_EQ(mean_of(DType::kFloat4E2M1FNx2, stats), 1.25);
  // Blocks are counted in elements, and join in any order.
  StatsJoiner joiner;
  joiner.add(DType::kFloat4E2M1FNx2, 2, stats);
  EXPECT_EQ(joiner.blocks().begin()->first, 2U);
  joiner.add(DType::kFloat4E2M1FNx2, 0, stats);
  EXPECT_EQ(joiner.total().count, 8U);
}

}  // namespace
}  // namespace fsdp::formats
