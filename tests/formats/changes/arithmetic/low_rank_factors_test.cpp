// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_lora.py compares factors with those of torch.linalg.svd.
#include "formats/changes/arithmetic/low_rank_factors.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

// A matrix whose elements are computed.
class Computed : public MatrixRows {
 public:
  using Element = std::function<double(std::size_t row, std::size_t column)>;
  Computed(std::size_t rows, std::size_t columns, Element element)
      : rows_(rows), columns_(columns), element_(std::move(element)) {}
  std::size_t rows() const override { return rows_; }
  std::size_t columns() const override { return columns_; }
  void read(std::size_t first, std::span<double> out) override {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = element_(first + i / columns_, i % columns_);
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
  Element element_;
};

FactorOptions of_rank(std::size_t rank, unsigned threads = 1) {
  FactorOptions options;
  options.rank = rank;
  options.threads = threads;
  return options;
}

TEST(LowRankFactors, a_matrix_of_that_rank_is_its_factors) {
  Computed matrix(700, 130, [](std::size_t r, std::size_t c) {
    const auto x = static_cast<double>(r);
    const auto y = static_cast<double>(c);
    return x * y + 3 * (x + 1) - 2 * y;  // of rank 2
  });
  const auto factors = low_rank_factors(matrix, of_rank(3));
  ASSERT_TRUE(factors.has_value());
  EXPECT_NEAR(factors->kept / factors->energy, 1, 1e-14);
  EXPECT_LT(residual_energy(matrix, factors->left, factors->right, 1), 1e-24 * factors->energy);
  // The third has nothing to hold.
  EXPECT_TRUE(std::all_of(factors->left.at(2), factors->left.at(2) + 700,
                          [](double element) { return element == 0; }));
}

TEST(LowRankFactors, the_largest_singular_values_are_kept) {
  // A diagonal of 1, 1/2, 1/3, ...
  Computed matrix(40, 60, [](std::size_t r, std::size_t c) {
    return r == c ? 1 / static_cast<double>(r + 1) : 0.0;
  });
  const auto factors = low_rank_factors(matrix, of_rank(4));
  ASSERT_TRUE(factors.has_value());
  for (std::size_t k = 0; k < 4; ++k) {
    const double value = std::sqrt(dot(factors->left.at(k), factors->left.at(k), 40) *
                                   dot(factors->right.at(k), factors->right.at(k), 60));
    EXPECT_NEAR(value, 1 / static_cast<double>(k + 1), 1e-6) << k;
  }
  EXPECT_NEAR(factors->kept, 1 + 1.0 / 4 + 1.0 / 9 + 1.0 / 16, 1e-6);
  EXPECT_NEAR(residual_energy(matrix, factors->left, factors->right, 3),
              factors->energy - factors->kept, 1e-9);
}

TEST(LowRankFactors, threads_do_not_change_a_bit) {
  Computed matrix(90, 70, [](std::size_t r, std::size_t c) {
    return std::sqrt(static_cast<double>((r * 31 + c * 17) % 101));
  });
  const auto one = low_rank_factors(matrix, of_rank(12));
  const auto five = low_rank_factors(matrix, of_rank(12, 5));
  ASSERT_TRUE(one && five);
  EXPECT_EQ(one->left.elements, five->left.elements);
  EXPECT_EQ(one->right.elements, five->right.elements);
  EXPECT_EQ(residual_energy(matrix, one->left, one->right, 1),
            residual_energy(matrix, one->left, one->right, 4));
}

TEST(LowRankFactors, zeros_have_none) {
  const auto zero = [](std::size_t, std::size_t) { return 0.0; };
  Computed zeros(5, 6, zero);
  EXPECT_FALSE(low_rank_factors(zeros, of_rank(2)));
  Computed empty(0, 6, zero);
  EXPECT_FALSE(low_rank_factors(empty, of_rank(1)));
  Computed tiny(5, 6, [](std::size_t, std::size_t) { return 1e-100; });
  test::expect_error(ErrorCode::kUnsupported, "too small",
                     [&] { low_rank_factors(tiny, of_rank(1)); });
}

}  // namespace
}  // namespace fsdp::formats
