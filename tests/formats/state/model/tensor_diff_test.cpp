// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/tensor_diff.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename A, typename B>
TensorDifference compare(DType left, const std::vector<A>& a, DType right, const std::vector<B>& b,
                         const Tolerance& tolerance = {}) {
  TensorDifference found;
  compare_elements(left, std::as_bytes(std::span(a)), right, std::as_bytes(std::span(b)), 0,
                   tolerance, found);
  return found;
}

TensorDifference floats(const std::vector<float>& a, const std::vector<float>& b,
                        const Tolerance& tolerance = {}) {
  return compare(DType::kFloat32, a, DType::kFloat32, b, tolerance);
}

Tolerance within(double atol, double rtol = 0) {
  Tolerance tolerance;
  tolerance.exact = false;
  tolerance.atol = atol;
  tolerance.rtol = rtol;
  return tolerance;
}

TEST(CompareElements, equal_bits_are_the_same_even_as_nan) {
  const TensorDifference found = floats({1, kNan, -0.0F}, {1, kNan, -0.0F});
  EXPECT_EQ(found.count, 3U);
  EXPECT_EQ(found.unequal, 0U);
  EXPECT_EQ(found.different, 0U);
}

TEST(CompareElements, the_figures_name_the_first_and_the_worst) {
  const TensorDifference found = floats({1, 2, 3, 4}, {1, 2.5, 3, 1});
  EXPECT_EQ(found.different, 2U);
  EXPECT_EQ(found.first, 1U);
  EXPECT_EQ(found.max_abs, 3);
  EXPECT_EQ(found.max_abs_at, 3U);
  EXPECT_EQ(found.max_rel, 3);
  EXPECT_EQ(found.max_ulp, 0x1000000U);
}

TEST(CompareElements, exact_means_bits_and_tolerance_means_numbers) {
  EXPECT_EQ(floats({0.0F}, {-0.0F}).different, 1U);
  EXPECT_EQ(floats({0.0F}, {-0.0F}, within(0)).different, 0U);
  EXPECT_EQ(floats({0.0F}, {-0.0F}, within(0)).unequal, 1U);
  const float next = std::nextafter(1.0F, 2.0F);
  EXPECT_EQ(floats({next}, {1.0F}).max_ulp, 1U);
  EXPECT_EQ(floats({next}, {1.0F}, within(1e-6)).different, 0U);
  EXPECT_EQ(floats({next}, {1.0F}, within(1e-8)).different, 1U);
}

TEST(CompareElements, the_relative_tolerance_is_of_the_right_side) {
  EXPECT_EQ(floats({110}, {100}, within(0, 0.1)).different, 0U);
  EXPECT_EQ(floats({100}, {111.2F}, within(0, 0.1)).different, 1U);
  EXPECT_EQ(floats({1}, {0}, within(0, 1e9)).different, 1U);
}

TEST(CompareElements, units_in_the_last_place_count_across_zero) {
  Tolerance tolerance = within(0);
  tolerance.ulp = 2;
  const float tiny = std::bit_cast<float>(1U);
  EXPECT_EQ(floats({tiny}, {-tiny}, tolerance).different, 0U);
  EXPECT_EQ(floats({2 * tiny}, {-tiny}, tolerance).different, 1U);
  EXPECT_EQ(floats({2 * tiny}, {-tiny}, tolerance).max_ulp, 3U);
  // The largest number and infinity are neighbours, but not the same.
  EXPECT_EQ(floats({std::numeric_limits<float>::max()}, {kInf}, tolerance).different, 1U);
}

TEST(CompareElements, nan_is_like_nothing_but_itself_unless_asked_for) {
  const std::vector<float> other = {std::bit_cast<float>(0x7FC00001U)};
  Tolerance tolerance = within(1e9, 1e9);
  EXPECT_EQ(floats({kNan}, other, tolerance).different, 1U);
  EXPECT_EQ(floats({kNan}, other, tolerance).nan_left, 1U);
  EXPECT_EQ(floats({kNan}, {1}, tolerance).different, 1U);
  tolerance.nan_equal = true;
  EXPECT_EQ(floats({kNan}, other, tolerance).different, 0U);
  EXPECT_EQ(floats({kNan}, {1}, tolerance).different, 1U);
  EXPECT_EQ(floats({1}, {kNan}, tolerance).nan_right, 1U);
  tolerance.exact = true;
  EXPECT_EQ(floats({kNan}, other, tolerance).different, 0U);
}

TEST(CompareElements, infinities_are_the_same_only_as_themselves) {
  const Tolerance wide = within(1e30, 1e30);
  EXPECT_EQ(floats({kInf, kInf, 1}, {kInf, -kInf, kInf}, wide).different, 2U);
  EXPECT_EQ(floats({kInf, 2}, {kInf, 2}, wide).different, 0U);
  EXPECT_EQ(floats({kInf}, {1}).max_abs, std::numeric_limits<double>::infinity());
}

TEST(CompareElements, integers_of_64_bits_are_subtracted_exactly) {
  const std::vector<std::int64_t> a = {(std::int64_t{1} << 60) + 1, INT64_MIN};
  const std::vector<std::int64_t> b = {std::int64_t{1} << 60, INT64_MAX};
  const TensorDifference found = compare(DType::kInt64, a, DType::kInt64, b, within(0));
  EXPECT_EQ(found.different, 2U);
  EXPECT_EQ(found.max_abs, 0x1p64);
  EXPECT_FALSE(found.max_ulp);
}

TEST(CompareElements, dtypes_that_differ_are_compared_as_numbers) {
  const std::vector<std::uint16_t> half = {0x3F80, 0x3FC0};  // 1, 1.5 in bfloat16
  EXPECT_EQ(compare(DType::kBFloat16, half, DType::kFloat64, std::vector<double>{1, 1.5}).unequal,
            0U);
  EXPECT_EQ(
      compare(DType::kBFloat16, half, DType::kFloat64, std::vector<double>{1, 1.501}).different,
      1U);
  EXPECT_TRUE(comparable(DType::kBFloat16, DType::kInt8));
  EXPECT_FALSE(comparable(DType::kBFloat16, DType::kComplex64));
  EXPECT_FALSE(comparable(DType::kBits8, DType::kUInt8));
}

TEST(CompareElements, complex_numbers_differ_by_their_distance) {
  const TensorDifference found = compare(DType::kComplex64, std::vector<float>{1, 2},
                                         DType::kComplex64, std::vector<float>{4, 6}, within(5));
  EXPECT_EQ(found.unequal, 1U);
  EXPECT_EQ(found.different, 0U);
  EXPECT_EQ(found.max_abs, 5);
}

TEST(CompareElements, every_position_of_long_blocks_is_seen) {
  std::vector<float> a(5000, 1.0F);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1023}, std::size_t{1024},
                               std::size_t{4095}, std::size_t{4999}}) {
    std::vector<float> b = a;
    b[at] = 2;
    const TensorDifference found = floats(a, b);
    EXPECT_EQ(found.different, 1U);
    EXPECT_EQ(found.first, at);
    EXPECT_EQ(found.max_abs_at, at);
  }
}

double change_of(const TensorDifference& found) {
  return relative_change(found.apart, found.left);
}

TEST(RelativeChange, is_the_norm_of_the_change_by_the_norm_of_the_left) {
  EXPECT_EQ(change_of(floats({3, 4}, {3, 9})), 1);
  EXPECT_EQ(change_of(floats({3, 4}, {3, 4})), 0);
  EXPECT_EQ(change_of(floats({0, 0}, {0, 0})), 0);
  EXPECT_EQ(change_of(floats({0, 0}, {0, 1})), kInf);
  // Equal elements count, in groups of their own too.
  std::vector<float> a(5000, 2);
  std::vector<float> b = a;
  b[4999] = 12;
  EXPECT_DOUBLE_EQ(change_of(floats(a, b)), 10 / std::sqrt(5000 * 4.0));
  EXPECT_EQ(change_of(compare(DType::kInt64, std::vector<std::int64_t>{1LL << 62, 0}, DType::kInt64,
                              std::vector<std::int64_t>{(1LL << 62) + 1, 0})),
            0x1p-62);
  EXPECT_EQ(change_of(compare(DType::kComplex64, std::vector<float>{3, 4}, DType::kComplex64,
                              std::vector<float>{0, 0})),
            1);
  EXPECT_EQ(change_of(compare(DType::kFloat64, std::vector<double>{1e300, 0}, DType::kFloat64,
                              std::vector<double>{1e300, 1e-300})),
            0);  // too small for float64
}

TEST(RelativeChange, leaves_out_pairs_that_are_not_finite) {
  const TensorDifference found = floats({3, kNan, 1, kInf, kNan, 4}, {3, 1, kInf, kInf, kNan, 9});
  EXPECT_EQ(found.unbounded, 2U);
  EXPECT_EQ(found.left.root(), 5);
  EXPECT_EQ(found.apart.root(), 5);
  std::vector<float> shared(2048, 1);
  shared[7] = kNan;
  EXPECT_DOUBLE_EQ(floats(shared, shared).left.root(), std::sqrt(2047.0));
  const std::vector<float> parts = {3, 4, kInf, 9, 5, kNan};
  EXPECT_EQ(compare(DType::kComplex64, parts, DType::kComplex64, parts).left.root(), 5);
}

TEST(CompareElements, merging_does_not_depend_on_order) {
  const TensorDifference a = floats({1, 2}, {1, 4});
  TensorDifference b;
  const std::vector<float> x = {7};
  const std::vector<float> y = {9};
  compare_elements(DType::kFloat32, std::as_bytes(std::span(x)), DType::kFloat32,
                   std::as_bytes(std::span(y)), 2, {}, b);
  TensorDifference ab = a;
  merge(ab, b);
  TensorDifference ba = b;
  merge(ba, a);
  for (const TensorDifference& both : {ab, ba}) {
    EXPECT_EQ(both.count, 3U);
    EXPECT_EQ(both.different, 2U);
    EXPECT_EQ(both.first, 1U);
    EXPECT_EQ(both.max_abs, 2);
    EXPECT_EQ(both.max_abs_at, 1U);
  }
}

TEST(CloseTolerance, is_that_of_assert_close) {
  EXPECT_EQ(close_tolerance(DType::kFloat32).rtol, 1.3e-6);
  EXPECT_EQ(close_tolerance(DType::kBFloat16).rtol, 1.6e-2);
  EXPECT_EQ(close_tolerance(DType::kInt64).atol, 0);
}

TEST(CompareElements, packed_floats_are_compared_as_numbers) {
  using Bytes = std::vector<std::uint8_t>;
  // E2M1, low half first: 0.5 1, -6 0 against 0.5 1.5, 6 -0.
  const TensorDifference found =
      compare(DType::kFloat4E2M1FNx2, Bytes{0x21, 0x0F}, DType::kFloat4E2M1FNx2, Bytes{0x31, 0x87});
  EXPECT_EQ(found.count, 4U);
  EXPECT_EQ(found.unequal, 3U);
  EXPECT_EQ(found.different, 3U);
  EXPECT_EQ(found.first, 1U);
  EXPECT_EQ(found.max_abs, 12);
  EXPECT_EQ(found.max_abs_at, 2U);
  EXPECT_EQ(found.max_rel, 2);
  EXPECT_EQ(found.max_ulp, 14U);
  EXPECT_EQ(found.left.root(), std::sqrt(0.25 + 1 + 36));
  EXPECT_EQ(found.apart.root(), std::sqrt(0.25 + 144));
  EXPECT_EQ(compare(DType::kFloat4E2M1FNx2, Bytes{0x21, 0x0F}, DType::kFloat4E2M1FNx2,
                    Bytes{0x31, 0x87}, within(0.5))
                .different,
            1U);
  // E2M3 in three bytes: 7.5 at place 3 against -7.5, and nothing else.
  const TensorDifference six =
      compare(DType::kFloat6E2M3FNx4, Bytes{0, 0, 0x7C}, DType::kFloat6E2M3FNx4, Bytes{0, 0, 0xFC});
  EXPECT_EQ(six.count, 4U);
  EXPECT_EQ(six.first, 3U);
  EXPECT_EQ(six.max_abs, 15);
  EXPECT_EQ(six.max_ulp, 62U);
}

TEST(CompareElements, packed_floats_of_many_groups_keep_their_places) {
  std::vector<std::uint8_t> a(3 * 1000);
  std::vector<std::uint8_t> b = a;
  b[3 * 700 + 1] = 0x10;  // place 2 of element 700: 6 bits from bit 12 on
  const TensorDifference found = compare(DType::kFloat6E3M2FNx4, a, DType::kFloat6E3M2FNx4, b);
  EXPECT_EQ(found.count, 4000U);
  EXPECT_EQ(found.different, 1U);
  EXPECT_EQ(found.first, 2802U);
  EXPECT_EQ(found.max_abs, 0.0625);
}

}  // namespace
}  // namespace fsdp::formats
