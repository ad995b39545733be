// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/scaled_shape.h"

#include <algorithm>

#include "formats/state/model/box.h"

namespace fsdp::formats::quantized {

std::size_t least_rank(const Scheme& scheme) {
  if (scheme.sharing == Sharing::kTensor) return 0;
  return scheme.sharing == Sharing::kBlocks ? 2 : 1;
}

ScaledShape scaled_shape(const Scheme& scheme, const Shape& shape) {
  ScaledShape out;
  if (scheme.sharing == Sharing::kTensor) {
    out.grid.columns = volume({shape, shape});
    out.grid.block_columns = std::max<std::uint64_t>(1, out.grid.columns);
    return out;
  }
  out.scales.assign(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(least_rank(scheme)));
  out.grid.matrices = volume({out.scales, out.scales});
  out.grid.columns = static_cast<std::uint64_t>(shape.back());
  if (scheme.sharing == Sharing::kRows || scheme.columns < 0) {
    out.grid.block_columns = std::max<std::uint64_t>(1, out.grid.columns);
    out.scales.push_back(1);
    return out;
  }
  out.grid.block_columns = static_cast<std::uint64_t>(scheme.columns);
  if (scheme.sharing == Sharing::kBlocks) {
    out.grid.rows = static_cast<std::uint64_t>(shape[shape.size() - 2]);
    out.grid.block_rows = static_cast<std::uint64_t>(scheme.rows);
    out.scales.push_back(static_cast<std::int64_t>(out.grid.scale_rows()));
  }
  out.scales.push_back(static_cast<std::int64_t>(out.grid.scale_columns()));
  return out;
}

}  // namespace fsdp::formats::quantized
