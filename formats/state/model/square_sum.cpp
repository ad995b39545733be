// SPDX-License-Identifier: Apache-2.0
// Loops keep kSquareLanes results side by side, so that compilers make vector instructions of them
// without changing the order of additions; CMakeLists.txt keeps them from fusing multiplications
// and additions, which would make results depend on the processor.
#include "formats/state/model/square_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/bytes/base/vector_clones.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kSquareLanes = 16;
// Sums outside these bounds may have lost squares to overflow, or to numbers too small for float64.
constexpr double kLeast = 1e-250;
constexpr double kMost = 1e250;

using Lanes = std::array<double, kSquareLanes>;

double total_of(const Lanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Calls `add` with the lane and the position of each element.
template <typename Add>
inline __attribute__((always_inline)) void each_lane(std::size_t count, const Add& add) {
  std::size_t i = 0;
  for (; i + kSquareLanes <= count; i += kSquareLanes) {
    for (std::size_t l = 0; l < kSquareLanes; ++l) add(l, i + l);
  }
  for (std::size_t l = 0; i + l < count; ++l) add(l, i + l);
}

FSDP_WIDE_VECTORS double plain_sum(const double* numbers, std::size_t count) {
  Lanes sum{};
  each_lane(count, [&](std::size_t l, std::size_t i) { sum[l] += numbers[i] * numbers[i]; });
  return total_of(sum);
}

float float_at(std::span<const std::byte> numbers, std::size_t i) {
  float number;
  std::memcpy(&number, numbers.data() + i * sizeof(number), sizeof(number));
  return number;
}

// A bfloat16 is the upper half of a float32.
float bfloat16_at(std::span<const std::byte> numbers, std::size_t i) {
  std::uint16_t code;
  std::memcpy(&code, numbers.data() + i * sizeof(code), sizeof(code));
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16U);
}

}  // namespace

void SquareSum::add(std::span<const double> numbers) {
  const double sum = plain_sum(numbers.data(), numbers.size());
  if (sum >= kLeast && sum <= kMost) return add_scaled(sum, 0);
  double most = 0;
  for (const double number : numbers) most = std::max(most, std::abs(number));
  if (most == 0) return;
  if (std::isinf(most)) return add_scaled(most, 0);
  const int exponent = std::ilogb(most);
  std::array<double, kSquareLanes> part{};
  for (std::size_t at = 0; at < numbers.size(); at += kSquareLanes) {
    const auto some = numbers.subspan(at, std::min(kSquareLanes, numbers.size() - at));
    for (std::size_t i = 0; i < some.size(); ++i) part[i] = std::scalbn(some[i], -exponent);
    add_scaled(plain_sum(part.data(), some.size()), exponent);
  }
}

void SquareSum::rescale(int exponent) {
  sum_ = std::scalbn(sum_, 2 * (exponent_ - exponent));
  rest_ = std::scalbn(rest_, 2 * (exponent_ - exponent));
  exponent_ = exponent;
}

void SquareSum::add_scaled(double sum, int exponent) {
  if (sum == 0) return;
  if (sum_ == 0 || exponent > exponent_) rescale(exponent);
  const double number = std::scalbn(sum, 2 * (exponent - exponent_));
  const double both = sum_ + number;
  rest_ += sum_ >= number ? (sum_ - both) + number : (number - both) + sum_;
  sum_ = both;
}

void SquareSum::add(const SquareSum& other) {
  add_scaled(other.sum_, other.exponent_);
  if (other.sum_ != 0) rest_ += std::scalbn(other.rest_, 2 * (other.exponent_ - exponent_));
}

double SquareSum::total() const {
  return std::isfinite(sum_) ? sum_ + rest_ : sum_;
}

double SquareSum::root() const {
  return std::scalbn(std::sqrt(total()), exponent_);
}

FSDP_WIDE_VECTORS PairSquares pair_squares(std::span<const std::byte> left,
                                           std::span<const std::byte> right) {
  Lanes squares{};
  Lanes apart{};
  each_lane(left.size() / sizeof(float), [&](std::size_t l, std::size_t i) {
    const double a = float_at(left, i);
    const double distance = a - static_cast<double>(float_at(right, i));
    squares[l] += a * a;
    apart[l] += distance * distance;
  });
  return {total_of(squares), total_of(apart)};
}

FSDP_WIDE_VECTORS double float_squares(std::span<const std::byte> numbers) {
  Lanes squares{};
  each_lane(numbers.size() / sizeof(float), [&](std::size_t l, std::size_t i) {
    const double a = float_at(numbers, i);
    squares[l] += a * a;
  });
  return total_of(squares);
}

FSDP_WIDE_VECTORS double bfloat16_squares(std::span<const std::byte> numbers) {
  Lanes squares{};
  each_lane(numbers.size() / sizeof(std::uint16_t), [&](std::size_t l, std::size_t i) {
    const double a = bfloat16_at(numbers, i);
    squares[l] += a * a;
  });
  return total_of(squares);
}

}  // namespace fsdp::formats
