// SPDX-License-Identifier: Apache-2.0
// Numbers with a scale for each block of them, as elements of a wider dtype.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/block_grid.h"

namespace fsdp::formats::arrays {

// Returns the array of each number times its block's scale, computed in float32 and rounded to
// nearest, ties to even, when it is cast: as PyTorch does.
// `mxfp4` (OCP Microscaling Formats 1.0, E2M1 and E8M0): a byte of `numbers` holds two numbers, the
// first in its low half; a byte of `scales` is the exponent of a power of two, plus 127.
// Requires: the arrays have as many elements as the grid says; both are of floating dtypes, or of
// uint8 (mxfp4); `shape` has the grid's elements.
// Throws while the result is read: kUnsupported naming a scale of mxfp4 of 255, which is NaN.
Array dequantized(const Array& numbers, const Array& scales, const BlockGrid& grid,
                  const std::vector<std::int64_t>& shape, DType to, bool mxfp4);

// Returns whether a tensor of 8-bit numbers has their scales beside it, among `keys`.
template <typename Keys>
bool has_scales(const Keys& keys, const std::string& key, DType dtype) {
  return item_bytes(dtype) == 1 &&
         (keys.contains(key + "_scale") || keys.contains(key + "_scale_inv"));
}

}  // namespace fsdp::formats::arrays
