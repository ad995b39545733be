// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/weighted_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The sum of one element of each input.
float sum_of(const std::vector<float>& x, const std::vector<double>& weights,
             std::optional<double> divisor = std::nullopt,
             Accumulator accumulator = Accumulator::kFloat32) {
  WeightedSum sum(accumulator);
  sum.begin(1);
  for (std::size_t i = 0; i < x.size(); ++i)
    sum.add(DType::kFloat32, std::as_bytes(std::span(x).subspan(i, 1)), weights[i]);
  float result = 0;
  sum.finish(divisor, DType::kFloat32, std::as_writable_bytes(std::span(&result, 1)));
  return result;
}

TEST(WeightedSum, every_product_and_every_sum_is_rounded) {
  const float x = std::nextafter(1.0F, 2.0F);
  const float square = x * x;
  // Fused, the product would keep what its rounding lost.
  EXPECT_EQ(sum_of({x, square}, {double{x}, -1}), 0);
  // From the left: the small ones are lost one after the other.
  EXPECT_EQ(sum_of({1, 0x1p-24F, 0x1p-24F}, {1, 1, 1}), 1);
  EXPECT_EQ(sum_of({0x1p-24F, 0x1p-24F, 1}, {1, 1, 1}), 1 + 0x1p-23F);
  EXPECT_EQ(sum_of({1, 0x1p-24F, 0x1p-24F}, {1, 1, 1}, {}, Accumulator::kFloat64), 1 + 0x1p-23F);
}

TEST(WeightedSum, weights_are_rounded_to_the_accumulator) {
  EXPECT_EQ(sum_of({3}, {0.1}), 3 * 0.1F);
  EXPECT_EQ(sum_of({3}, {0.1}, {}, Accumulator::kFloat64), static_cast<float>(3 * 0.1));
  EXPECT_EQ(rounded(0.1, Accumulator::kFloat32), double{0.1F});
  EXPECT_EQ(rounded(0.1, Accumulator::kFloat64), 0.1);
  EXPECT_TRUE(std::isinf(rounded(1e300, Accumulator::kFloat32)));
}

TEST(WeightedSum, the_first_product_begins_the_sum) {
  EXPECT_TRUE(std::signbit(sum_of({-0.0F}, {1})));
  EXPECT_TRUE(std::signbit(sum_of({-0.0F, -0.0F}, {1, 1})));
  EXPECT_FALSE(std::signbit(sum_of({-0.0F, 0.0F}, {1, 1})));
}

TEST(WeightedSum, the_divisor_comes_last) {
  EXPECT_EQ(sum_of({1, 1, 2}, {1, 1, 1}, 3), 4.0F / 3.0F);
  EXPECT_EQ(sum_of({1, 1}, {0x1p100, 0x1p100}, 0x1p101), 1);
}

TEST(WeightedSum, there_is_one_nan) {
  const std::uint32_t canonical = 0x7FC00000;
  for (const float nan :
       {sum_of({kInfinity, -kInfinity}, {1, 1}), sum_of({kInfinity}, {0}),
        sum_of({std::bit_cast<float>(0xFFC12345U)}, {1}),
        sum_of({1, std::bit_cast<float>(0x7F800001U)}, {1, 2}), sum_of({0}, {1}, 0)}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(nan), canonical);
  }
}

TEST(WeightedSum, numbers_below_the_normal_ones_are_kept) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(sum_of({least, least}, {1, 1}), 2 * least);
  EXPECT_EQ(sum_of({3 * least}, {0.5}), 2 * least);
}

TEST(WeightedSum, lengths_do_not_matter) {
  for (const std::size_t count : {1U, 2047U, 2048U, 2049U, 5000U}) {
    std::vector<float> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i) + 0.25F;
    WeightedSum sum(Accumulator::kFloat32);
    for (int again = 0; again < 2; ++again) {
      sum.begin(count);
      sum.add(DType::kFloat32, std::as_bytes(std::span(x)), 2);
      sum.add(DType::kFloat32, std::as_bytes(std::span(x)), -1);
      std::vector<float> out(count);
      sum.finish(std::nullopt, DType::kFloat32, std::as_writable_bytes(std::span(out)));
      EXPECT_EQ(out, x);
    }
  }
}

TEST(WeightedSum, elements_may_lie_anywhere_and_each_is_added_up_by_itself) {
  constexpr std::size_t kCount = 5000;  // whole steps of the loops, and a part of one
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                            DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    const std::size_t item = item_bytes(dtype);
    std::vector<std::byte> memory(1 + kCount * item);
    std::uint32_t state = 7;
    for (std::byte& byte : memory) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::byte>(state >> 24U);
    }
    const auto elements = std::span<const std::byte>(memory).subspan(1);
    for (const Accumulator accumulator : {Accumulator::kFloat32, Accumulator::kFloat64}) {
      WeightedSum all(accumulator);
      WeightedSum single(accumulator);
      const auto add_up = [&](WeightedSum& sum, std::span<const std::byte> part,
                              std::span<std::byte> out) {
        sum.begin(part.size() / item);
        for (const double weight : {0.7, -3.0, 0.1}) sum.add(dtype, part, weight);
        sum.finish(3, DType::kFloat32, out);
      };
      std::vector<std::byte> out(1 + kCount * sizeof(float));
      const auto sums = std::span(out).subspan(1);
      add_up(all, elements, sums);
      for (std::size_t i = 0; i < kCount; i += 37) {
        std::array<std::byte, sizeof(float)> alone{};
        add_up(single, elements.subspan(i * item, item), alone);
        ASSERT_TRUE(std::equal(alone.begin(), alone.end(), sums.begin() + i * sizeof(float)))
            << torch_name(dtype) << " element " << i;
      }
    }
  }
}

TEST(WeightedSum, float64_is_exact_in_float64_and_rounded_in_float32) {
  const double x = 1 + 0x1p-40;
  for (const Accumulator accumulator : {Accumulator::kFloat32, Accumulator::kFloat64}) {
    WeightedSum sum(accumulator);
    sum.begin(1);
    sum.add(DType::kFloat64, std::as_bytes(std::span(&x, 1)), 1);
    double out = 0;
    sum.finish(std::nullopt, DType::kFloat64, std::as_writable_bytes(std::span(&out, 1)));
    EXPECT_EQ(out, accumulator == Accumulator::kFloat64 ? x : 1);
  }
}

}  // namespace
}  // namespace fsdp::formats
