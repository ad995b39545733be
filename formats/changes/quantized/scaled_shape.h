// SPDX-License-Identifier: Apache-2.0
// The parts of a weight that share a scale.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/changes/arrays/block_grid.h"
#include "formats/changes/quantized/scheme.h"

namespace fsdp::formats::quantized {

using Shape = std::vector<std::int64_t>;

struct ScaledShape {
  arrays::BlockGrid grid;
  Shape scales;  // of the scales: [] for the tensor, else the leading dimensions, rows, columns
};

// Returns the fewest dimensions of a weight.
std::size_t least_rank(const Scheme& scheme);

// Cuts a weight; the last block of a row or column may be smaller.
// Requires: at least least_rank dimensions, sizes of blocks and groups of at least 1, or -1.
ScaledShape scaled_shape(const Scheme& scheme, const Shape& shape);

}  // namespace fsdp::formats::quantized
