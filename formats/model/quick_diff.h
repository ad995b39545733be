// SPDX-License-Identifier: Apache-2.0
// A first look at float32 elements that differ, in float32 arithmetic: most groups of a tensor lie
// no further apart than what was found before, and need no more than counting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "formats/model/tensor_diff.h"

namespace fsdp::formats {

struct QuickCounts {
  std::uint64_t unequal = 0;    // bits
  std::uint64_t different = 0;  // beyond the tolerance
};

// What to add to `known` for these elements, `first` elements into the tensor.  Nothing where more
// than the counts may change, or where float32 is too coarse to tell: compare_elements then looks
// in float64.
std::optional<QuickCounts> quick_counts(std::span<const std::byte> left,
                                        std::span<const std::byte> right, std::uint64_t first,
                                        const Tolerance& tolerance, const TensorDifference& known);

}  // namespace fsdp::formats
