// SPDX-License-Identifier: Apache-2.0
// Numbers with a scale for each block of them, as elements of a wider dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/block_grid.h"

namespace fsdp::formats::arrays {

// What a number of a block becomes: (number - zero) * scale, computed in float32 and rounded to
// `product`; then, if columns have factors, times that of its column in float32; and rounded to
// `to`.  Each time to nearest, ties to even: as PyTorch does where it multiplies tensors.
//
// Requires: all arrays are of floating dtypes; `numbers` have as many elements as the grid says,
// `scales` and `zeros` one for each block.
struct Dequantization {
  Array numbers = {};
  Array scales = {};
  BlockGrid grid = {};
  std::optional<Array> zeros = std::nullopt;
  // One number for all blocks: scales are multiplied by it, or divided.
  std::optional<Array> global = std::nullopt;
  bool divides = false;
  std::optional<Array> columns = std::nullopt;  // a factor for each index of the last dimension
  DType product = DType::kFloat32;
  DType to = DType::kFloat32;
};

// Returns the array of that shape.  Requires: `shape` has the grid's elements.
Array dequantized(const Dequantization& from, const std::vector<std::int64_t>& shape);

// Returns whether a tensor of 8-bit numbers has their scales beside it, among `keys`.
template <typename Keys>
bool has_scales(const Keys& keys, const std::string& key, DType dtype) {
  return item_bytes(dtype) == 1 &&
         (keys.contains(key + "_scale") || keys.contains(key + "_scale_inv"));
}

}  // namespace fsdp::formats::arrays
