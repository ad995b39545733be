// SPDX-License-Identifier: Apache-2.0
// Adds products of two thin matrices to a weight, the same in every bit on every machine.
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
// Each element w of a weight of float64 is computed in float64, any other one in float32; every
// step rounds to nearest, ties to even, and none is fused with another:
//   1. w is converted, which is exact; so are the matrices, but for float64 in float32;
//   2. for each update, in order: d = left[i][0] * right[0][j]; then for k from 1 on
//      d = d + left[i][k] * right[k][j]; then w = w + scale * d, where scale was rounded once;
//   3. a NaN becomes the one quiet NaN without a sign, and w is cast as `cast` does.

// A dense row-major matrix.
struct ThinMatrix {
  DType dtype = DType::kFloat32;  // a floating type
  std::vector<std::byte> elements;
  bool transposed = false;  // its rows are the columns that are meant
};

// left [rows, rank] times right [rank, columns], times scale.
struct LowRankUpdate {
  ThinMatrix left;
  ThinMatrix right;
  std::uint64_t rank = 0;  // at least 1
  double scale = 1;
};

// The weight with its updates, as bytes that are computed while they are read; reads cover whole
// elements.  Memory: the matrices in the type of the computation.
// Requires: `weight` is of a floating type, with rows of `columns` elements, `numel` in all, and is
// not empty: writers read no empty tensor.
// Lifetime: that of what `weight` reads.
std::shared_ptr<const ByteSource> low_rank_source(std::unique_ptr<ElementReader> weight,
                                                  std::span<const LowRankUpdate> updates,
                                                  std::uint64_t columns, DType to,
                                                  std::uint64_t numel);

}  // namespace fsdp::formats
