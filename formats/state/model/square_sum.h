// SPDX-License-Identifier: Apache-2.0
// Sums of squares, for 2-norms.
#pragma once

#include <cstddef>
#include <span>

namespace fsdp::formats {

// A sum of squares in float64 that neither overflows nor vanishes before its root does.  Sums of
// groups are added with compensation, so that their order changes no displayed digit of the root.
class SquareSum {
 public:
  // Adds the squares of one group of numbers.  Requires: none is NaN.
  void add(std::span<const double> numbers);
  // Adds a sum of squares.  Requires: 0, or a number that squares of float32 may add up to.
  void add_sum(double sum) { add_scaled(sum, 0); }
  void add(const SquareSum& other);
  double root() const;

 private:
  void add_scaled(double sum, int exponent);
  void rescale(int exponent);
  double total() const;

  // (sum_ + rest_) * 4^exponent_
  double sum_ = 0;
  double rest_ = 0;  // the rounding error of sum_
  int exponent_ = 0;
};

// Sums over pairs of float32 numbers.
struct PairSquares {
  double left = 0;   // of a * a
  double apart = 0;  // of (a - b) * (a - b)
};
PairSquares pair_squares(std::span<const std::byte> left, std::span<const std::byte> right);

// Return the sum of the squares of float32 and of bfloat16 numbers.
double float_squares(std::span<const std::byte> numbers);
double bfloat16_squares(std::span<const std::byte> numbers);

}  // namespace fsdp::formats
