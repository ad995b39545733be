// SPDX-License-Identifier: Apache-2.0
// Floating elements as numbers of float8_e4m3fn with a scale for each block of them.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/block_grid.h"

namespace fsdp::formats::arrays {

struct QuantizedArrays {
  Array numbers;  // float8_e4m3fn, of the array's shape
  Array scales;   // float32: what a number is multiplied with
};

// Note [how a block is quantized]
// As transformers does, in float32, every step rounded to nearest, ties to even: with `most` the
// largest magnitude of the block, f = (1 / most) * 448; the scale is 1 / f, and a number is its
// element times f, cut to what float8_e4m3fn holds (448) and cast.  Where f would not be finite
// (zeros, or nothing above 2^-128 * 448) it is 1.
// Only the factors of some blocks are kept: elements are read once for the factors and once for the
// numbers, and once more for the scales.
//
// Requires: the array's dtype is floating; it has as many elements as the grid says, and
// `scale_shape` as many as the grid has blocks.
// Throws while the arrays are read: kUnsupported naming an element that is NaN or infinite.
QuantizedArrays quantized_arrays(const Array& array, const BlockGrid& grid,
                                 const std::vector<std::int64_t>& scale_shape);

}  // namespace fsdp::formats::arrays
