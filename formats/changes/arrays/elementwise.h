// SPDX-License-Identifier: Apache-2.0
// Arithmetic on single elements, and constants.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

enum class Arithmetic { kCast, kAdd, kScale };

// An operation on each element. float64 is computed in float64, every other dtype in float32 with
// one rounding to nearest, ties to even, at the end: as PyTorch does with a tensor and a number.
struct ElementStep {
  Arithmetic kind = Arithmetic::kCast;
  DType to = DType::kFloat32;  // kCast
  double number = 0;           // kAdd, kScale
};

// Returns the array with the step applied to all elements; moves before it stay moves.
// Requires: the array's dtype is floating.
Array with_step(const Array& array, const ElementStep& step);

// Returns an array of these elements, again and again in row-major order.  Requires: there are
// some.
Array repeated_array(DType dtype, const std::vector<std::int64_t>& shape,
                     const std::vector<std::byte>& elements);
// Returns an array of one value.  Requires: the value is 0, or the dtype is floating.
Array constant_array(DType dtype, const std::vector<std::int64_t>& shape, double value);

}  // namespace fsdp::formats::arrays
