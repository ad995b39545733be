// SPDX-License-Identifier: Apache-2.0
// Adds products of two thin matrices to a weight, bit for bit the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"
#include "formats/changes/arithmetic/element_reader.h"

namespace fsdp::formats {

// Note [order of a low-rank update]
// Each element w of a weight is computed in float64 if the weight is float64, else in float32;
// every step rounds to nearest, ties to even, and no two steps are fused:
//   1. w is converted, exactly; the matrices are converted, exactly but for float64 to float32;
//   2. for each update, in order: d = left[i][0] * right[0][j]; then for k from 1 on
//      d = d + left[i][k] * right[k][j]; then w = w + scale * d, where scale was rounded once;
//   3. a NaN becomes the one quiet NaN without a sign, and w is cast as `cast` does.

// A dense row-major matrix.
struct ThinMatrix {
  DType dtype = DType::kFloat32;  // a floating type
  std::vector<std::byte> elements;
  bool transposed = false;  // `elements` hold the transposed matrix
};

// left [rows, rank] times right [rank, columns], times scale.
struct LowRankUpdate {
  ThinMatrix left;
  ThinMatrix right;
  std::uint64_t rank = 0;  // at least 1
  double scale = 1;
};

// Returns the weight with its updates, as bytes that are computed while they are read.  Reads must
// cover whole elements.  Memory: the matrices in the type of the computation.
// Requires: `weight` is of a floating type and has `numel` elements, not 0 (writers read no empty
// tensor), in rows of `columns`.
// Lifetime: what `weight` reads outlives the result.
std::shared_ptr<const ByteSource> low_rank_source(std::unique_ptr<ElementReader> weight,
                                                  std::span<const LowRankUpdate> updates,
                                                  std::uint64_t columns, DType to,
                                                  std::uint64_t numel);

}  // namespace fsdp::formats
