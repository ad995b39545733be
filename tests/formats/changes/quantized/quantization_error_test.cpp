// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_quantized_stats.py compares figures of whole models with PyTorch's.
#include "formats/changes/quantized/quantization_error.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats::quantized {
namespace {

ErrorFigures figures(const std::vector<float>& before, const std::vector<double>& after) {
  return error_figures(DType::kFloat32, std::as_bytes(std::span(before)), DType::kFloat64,
                       std::as_bytes(std::span(after)));
}

TEST(QuantizationError, figures_are_those_of_their_definitions) {
  const ErrorFigures found = figures({3, 4, 0, 0}, {3, 4.5, 0, 0.25});
  EXPECT_EQ(found.count, 4U);
  EXPECT_EQ(found.zeros, 1U);
  EXPECT_EQ(found.original_zeros, 2U);
  EXPECT_EQ(found.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(*found.relative(), std::sqrt(0.3125) / 5);
  EXPECT_DOUBLE_EQ(*found.decibels(), 10 * std::log10(25 / 0.3125));
}

TEST(QuantizationError, what_is_not_finite_is_counted_and_left_out) {
  const double inf = std::numeric_limits<double>::infinity();
  const ErrorFigures found = figures({1, 2, 2}, {inf, 2, std::nan("")});
  EXPECT_EQ(found.not_finite, 2U);
  EXPECT_EQ(found.square_sum, 4);
  EXPECT_EQ(found.error_sum, 0);
  EXPECT_EQ(*found.relative(), 0);
  EXPECT_FALSE(found.decibels());
}

TEST(QuantizationError, of_zeros_nothing_is_defined) {
  const ErrorFigures found = figures({0, 0}, {0, 1});
  EXPECT_FALSE(found.relative());
  EXPECT_FALSE(found.decibels());
  EXPECT_EQ(found.max_abs, 1);
}

TEST(QuantizationError, parts_join_to_the_whole) {
  ErrorFigures joined = figures({1, 2}, {1, 0});
  joined.append(figures({4}, {3}));
  const ErrorFigures whole = figures({1, 2, 4}, {1, 0, 3});
  EXPECT_EQ(joined.count, whole.count);
  EXPECT_EQ(joined.error_sum, whole.error_sum);
  EXPECT_EQ(joined.max_abs, whole.max_abs);
}

}  // namespace
}  // namespace fsdp::formats::quantized
