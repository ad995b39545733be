// SPDX-License-Identifier: Apache-2.0
// Adds products of two thin matrices to a weight, bit for bit the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/base/dtype.h"

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

// Adds updates to parts of a weight.  Thread-safe.
class LowRankKernel {
 public:
  LowRankKernel() = default;
  LowRankKernel(const LowRankKernel&) = delete;
  LowRankKernel& operator=(const LowRankKernel&) = delete;
  virtual ~LowRankKernel() = default;
  // Writes the elements from `first` on of the weight with its updates, as `to`.  `weight`: these
  // elements.  `scratch`: room for as many elements of float64, aligned as they are.
  virtual void apply(std::uint64_t first, std::span<const std::byte> weight,
                     std::span<std::byte> scratch, DType to, std::span<std::byte> out) const = 0;
};

// Memory: the matrices in the type of the computation.
// Requires: `weight` is a floating type; the weight has `numel` elements, not 0, in as many rows as
// the left matrices.
std::unique_ptr<LowRankKernel> low_rank_kernel(DType weight, std::span<const LowRankUpdate> updates,
                                               std::uint64_t numel);

}  // namespace fsdp::formats
