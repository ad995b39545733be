// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/vectors.h"

#include <cmath>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

Vectors filled(std::size_t count, std::size_t length) {
  Vectors vectors(count, length);
  for (std::size_t i = 0; i < vectors.elements.size(); ++i)
    vectors.elements[i] = static_cast<double>((i * 7919) % 211) - 100;
  return vectors;
}

TEST(Vectors, a_dot_product_has_sixteen_sums) {
  // 1 is lost beside 2^60 in the same sum, and is kept in another one until the end.
  std::vector<double> ones(33, 1);
  std::vector<double> numbers(33, 0);
  numbers[0] = 0x1p60;
  numbers[16] = 1;
  numbers[32] = -0x1p60;
  EXPECT_EQ(dot(numbers.data(), ones.data(), 33), 0);
  numbers[16] = 0;
  numbers[1] = 1;
  EXPECT_EQ(dot(numbers.data(), ones.data(), 33), 1);
  EXPECT_EQ(dot(numbers.data(), ones.data(), 0), 0);
}

TEST(Vectors, a_product_is_added_in_ascending_order) {
  const std::size_t rows = 3;
  const std::size_t inner = 131;
  const std::size_t columns = 150;
  const Vectors a = filled(rows, inner);
  const Vectors b = filled(inner, columns);
  Vectors c = filled(rows, columns);
  Vectors expected = c;
  for (std::size_t k = 0; k < rows; ++k) {
    for (std::size_t w = 0; w < columns; ++w) {
      for (std::size_t u = 0; u < inner; ++u) {
        volatile double part = a.at(k)[u] / 7 * b.at(u)[w];  // not fused with the addition
        expected.at(k)[w] += part;
      }
    }
  }
  Vectors sevenths = a;
  for (double& element : sevenths.elements) element /= 7;
  add_product({c.at(0), columns}, {sevenths.at(0), inner}, {b.at(0), columns}, rows, inner,
              columns);
  EXPECT_EQ(c.elements, expected.elements);
}

TEST(Vectors, vectors_become_orthonormal_and_dependent_ones_zero) {
  Vectors vectors = filled(5, 40);
  for (std::size_t i = 0; i < 40; ++i) vectors.at(3)[i] = 2 * vectors.at(0)[i] - vectors.at(2)[i];
  orthonormalize(vectors);
  for (std::size_t k = 0; k < 5; ++k) {
    for (std::size_t i = 0; i <= k; ++i) {
      const double expected = i == k && k != 3 ? 1 : 0;
      EXPECT_NEAR(dot(vectors.at(i), vectors.at(k), 40), expected, 1e-14) << i << ' ' << k;
    }
  }
}

TEST(Vectors, diagonalizing_leaves_the_product_and_sorts) {
  Vectors left = filled(4, 30);
  Vectors right = filled(4, 21);
  const auto product = [&](std::size_t row, std::size_t column) {
    double sum = 0;
    for (std::size_t k = 0; k < 4; ++k) sum += left.at(k)[row] * right.at(k)[column];
    return sum;
  };
  const double before[] = {product(0, 0), product(29, 20), product(7, 13)};
  diagonalize(left, right);
  for (std::size_t k = 1; k < 4; ++k) {
    EXPECT_GE(dot(left.at(k - 1), left.at(k - 1), 30), dot(left.at(k), left.at(k), 30));
    for (std::size_t i = 0; i < k; ++i)
      EXPECT_NEAR(dot(left.at(i), left.at(k), 30) / dot(left.at(0), left.at(0), 30), 0, 1e-12);
  }
  EXPECT_NEAR(product(0, 0), before[0], 1e-9);
  EXPECT_NEAR(product(29, 20), before[1], 1e-9);
  EXPECT_NEAR(product(7, 13), before[2], 1e-9);
}

}  // namespace
}  // namespace fsdp::formats
