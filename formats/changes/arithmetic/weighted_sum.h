// SPDX-License-Identifier: Apache-2.0
// Weighted sums of tensors, bit for bit the same on every machine.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

// The type in which sums are kept.
enum class Accumulator { kFloat32, kFloat64 };

// Note [order of a sum]
// For each element alone, from the first input to the last, with a = the accumulator's type and
// rounding to nearest, ties to even, after every step:
//   1. the element x_i is converted to a: exactly, but for float64 to float32;
//   2. the weight w_i was rounded to a;
//   3. p = w_i * x_i is rounded;
//   4. sum = p for the first input, else sum = sum + p, rounded.
// No multiplication is fused with an addition.  At the end sum = sum / d, rounded, if there is a
// divisor d; any NaN becomes the quiet one without a sign; and the sum is cast as `cast` does.
// Subnormal numbers are kept.  So results do not depend on blocks, threads, processors or
// compilers.

// The sums of one block of elements.
class WeightedSum {
 public:
  // See Note [order of a sum].
  explicit WeightedSum(Accumulator accumulator) : accumulator_(accumulator) {}

  // Begins the sums of `count` elements.
  void begin(std::size_t count);
  // Adds the next input.  Requires: `elements` are `count` elements of `dtype`, which is_floating.
  void add(DType dtype, std::span<const std::byte> elements, double weight);
  // Writes the sums.  Requires: add was called; is_floating(to); `out` holds `count` elements of
  // `to`.
  void finish(std::optional<double> divisor, DType to, std::span<std::byte> out);

 private:
  Accumulator accumulator_;
  std::size_t count_ = 0;
  bool first_ = true;
  std::vector<float> floats_;  // sized in whole loop steps; only one of the two is in use
  std::vector<double> doubles_;
};

// Returns `number` as the accumulator holds it.
double rounded(double number, Accumulator accumulator);

}  // namespace fsdp::formats
