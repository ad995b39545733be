// SPDX-License-Identifier: Apache-2.0
// A first pass over float32 elements that differ, in float32 arithmetic: most groups of a tensor
// differ no more than earlier ones, and only need counting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "formats/state/model/tensor_diff.h"

namespace fsdp::formats {

struct QuickCounts {
  std::uint64_t unequal = 0;    // bits
  std::uint64_t different = 0;  // beyond the tolerance
};

// Returns the counts to add to `known` for these elements, `first` elements into the tensor.
// Nothing if more than the counts may change, or if float32 is too coarse to tell: compare_elements
// then compares in float64.
std::optional<QuickCounts> quick_counts(std::span<const std::byte> left,
                                        std::span<const std::byte> right, std::uint64_t first,
                                        const Tolerance& tolerance, const TensorDifference& known);

}  // namespace fsdp::formats
