// SPDX-License-Identifier: Apache-2.0
// Compares two tensors element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "formats/bytes/base/dtype.h"
#include "formats/state/model/square_sum.h"

namespace fsdp::formats {

// The rule by which two elements count as equal.  Equal bits of one dtype always do, NaN included.
struct Tolerance {
  // Exact: only equal bits (of two dtypes: equal numbers) count as equal.  Otherwise numbers do if
  // |a - b| <= atol + rtol * |b|, or if at most `ulp` representable numbers of their dtype lie
  // between them; infinities do if they are equal.
  bool exact = true;
  double atol = 0;
  double rtol = 0;
  std::optional<std::uint64_t> ulp;
  bool nan_equal = false;  // all NaNs are equal
};

// Returns the tolerance of torch.testing.assert_close for that dtype: rtol and atol.
Tolerance close_tolerance(DType dtype) noexcept;

// The result.  Figures are of elements whose bits (of two dtypes: numbers) are unequal, in float64;
// 64-bit integers are subtracted exactly.  Complex numbers: absolute values.  Packed floats: each
// value is an element here.
struct TensorDifference {
  std::uint64_t count = 0;      // compared
  std::uint64_t unequal = 0;    // bits
  std::uint64_t different = 0;  // beyond the tolerance
  std::uint64_t first = 0;      // the first of these, if `different` is not 0
  double max_abs = 0;           // over finite pairs; infinity if one of a pair is infinite
  std::uint64_t max_abs_at = 0;
  double max_rel = 0;                    // |a - b| / |b|; infinity where b is 0
  std::optional<std::uint64_t> max_ulp;  // same floating type on both sides, finite pairs
  std::uint64_t nan_left = 0;
  std::uint64_t nan_right = 0;
  // Over all pairs of numbers that are both finite, equal ones too:
  SquareSum left;   // of |a|
  SquareSum apart;  // of |a - b|; infinite where one is too large for float64
  // Unequal pairs that have no distance: one of them, or both, is NaN or infinite.
  std::uint64_t unbounded = 0;
};

// Returns the 2-norm of the distances divided by that of the left side, over the pairs that are
// both finite: 0 if nothing lies apart, infinity if all of the left side is 0.
double relative_change(const SquareSum& apart, const SquareSum& left);

// Returns whether elements of the two can be compared: the same dtype, two of real numbers, two of
// complex ones, or two of equally many packed floats.
bool comparable(DType left, DType right) noexcept;

// Compares the same elements of both, `first` elements of the dtype into the tensor, and adds to
// `difference`, in any order of blocks.  Requires: comparable.
void compare_elements(DType left_dtype, std::span<const std::byte> left, DType right_dtype,
                      std::span<const std::byte> right, std::uint64_t first,
                      const Tolerance& tolerance, TensorDifference& difference);

// Adds another thread's result for the same tensor.
void merge(TensorDifference& difference, const TensorDifference& other);

}  // namespace fsdp::formats
