// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/quick_diff.h"

#include <bit>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using Floats = std::vector<float>;

std::span<const std::byte> bytes(const Floats& floats) {
  return std::as_bytes(std::span(floats));
}

// Earlier findings: figures that only a larger distance can change.
TensorDifference known() {
  TensorDifference found;
  found.different = 1;
  found.max_abs = 1;
  found.max_rel = 1;
  found.max_ulp = 1U << 24U;
  return found;
}

TEST(QuickCounts, elements_no_further_apart_are_only_counted) {
  const auto counts = quick_counts(bytes({1, 2, 0, 4}), bytes({1, 2.5F, 0, 4.5F}), 8, {}, known());
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->unequal, 2U);
  EXPECT_EQ(counts->different, 2U);
}

TEST(QuickCounts, the_tolerance_counts_where_it_is_clear) {
  Tolerance tolerance;
  tolerance.exact = false;
  tolerance.atol = 0.25;
  const auto counts =
      quick_counts(bytes({1, 2, 3}), bytes({1.125F, 2.5F, 3}), 8, tolerance, known());
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->unequal, 2U);
  EXPECT_EQ(counts->different, 1U);
  // On the bound itself.
  EXPECT_FALSE(quick_counts(bytes({1}), bytes({1.25F}), 8, tolerance, known()));
}

TEST(QuickCounts, whatever_may_change_a_figure_is_left_to_the_exact_look) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [a, b] : std::vector<std::pair<float, float>>{
           {3, 1}, {1, 2.0001F}, {1e-3F, 1e-5F}, {1e-3F, -1e-3F}, {kNan, 1}, {1, kInf}, {1, 0}}) {
    EXPECT_FALSE(quick_counts(bytes({a}), bytes({b}), 8, {}, known())) << a << ' ' << b;
  }
  EXPECT_FALSE(quick_counts(bytes({1}), bytes({1.25F}), 8, {}, {}));  // nothing is known
  TensorDifference tie = known();
  EXPECT_TRUE(quick_counts(bytes({1}), bytes({2}), 8, {}, tie));
  tie.max_abs_at = 9;
  EXPECT_FALSE(quick_counts(bytes({1}), bytes({2}), 8, {}, tie));  // it is the first of its size
  TensorDifference later = known();
  later.first = 9;
  EXPECT_FALSE(quick_counts(bytes({1}), bytes({1.25F}), 8, {}, later));  // the first one is here
}

// Returns arbitrary bits, or numbers of one magnitude.
Floats random_floats(std::mt19937& random, std::size_t count, bool any_bits) {
  Floats floats(count);
  for (float& number : floats) {
    const auto bits = static_cast<std::uint32_t>(random());
    number = any_bits ? std::bit_cast<float>(bits)
                      : static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31F;
  }
  return floats;
}

TEST(QuickCounts, figures_are_those_of_looking_at_every_element_alone) {
  std::mt19937 random(7);
  std::vector<Tolerance> tolerances(5);
  for (std::size_t t = 1; t < tolerances.size(); ++t) tolerances[t].exact = false;
  tolerances[2].atol = 1e-3;
  tolerances[3].rtol = 1e-3;
  tolerances[4] = {.exact = false, .atol = 1e-5, .rtol = 1.3e-6, .ulp = 1000, .nan_equal = false};
  for (int round = 0; round < 40; ++round) {
    const bool any_bits = round % 4 == 0;
    const Floats a = random_floats(random, 5000, any_bits);
    Floats b = random_floats(random, 5000, any_bits);
    // Close to the left side, equal to it, or unchanged.
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (round % 4 == 1 || random() % 2 == 0) b[i] = a[i] * (1 + b[i] * 0x1p-9F);
      if (random() % 8 == 0) b[i] = a[i];
      if (random() % 64 == 0) b[i] = -0.0F;
    }
    for (const Tolerance& tolerance : tolerances) {
      TensorDifference whole;
      compare_elements(DType::kFloat32, bytes(a), DType::kFloat32, bytes(b), 0, tolerance, whole);
      TensorDifference alone;
      for (std::size_t i = 0; i < a.size(); ++i) {
        TensorDifference one;  // nothing is known: looked at in float64
        compare_elements(DType::kFloat32, bytes(a).subspan(4 * i, 4), DType::kFloat32,
                         bytes(b).subspan(4 * i, 4), i, tolerance, one);
        merge(alone, one);
      }
      EXPECT_EQ(whole.count, alone.count);
      EXPECT_EQ(whole.unequal, alone.unequal);
      EXPECT_EQ(whole.different, alone.different);
      EXPECT_EQ(whole.first, alone.first);
      EXPECT_EQ(whole.max_abs, alone.max_abs);
      EXPECT_EQ(whole.max_abs_at, alone.max_abs_at);
      EXPECT_EQ(whole.max_rel, alone.max_rel);
      EXPECT_EQ(whole.max_ulp, alone.max_ulp);
      EXPECT_EQ(whole.nan_left, alone.nan_left);
      EXPECT_EQ(whole.nan_right, alone.nan_right);
      EXPECT_EQ(whole.unbounded, alone.unbounded);
      EXPECT_DOUBLE_EQ(whole.left.root(), alone.left.root());
      EXPECT_DOUBLE_EQ(whole.apart.root(), alone.apart.root());
    }
  }
}

}  // namespace
}  // namespace fsdp::formats
