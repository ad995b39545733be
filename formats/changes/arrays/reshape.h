// SPDX-License-Identifier: Apache-2.0
// Computes the parts of an array in another shape, or gathers its elements if the parts are too
// many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// Returns the parts of `array` as boxes of the new shape; nothing if they are more than
// `max_parts`.  Requires: the array has elements, and the new shape has as many.
std::optional<std::vector<Part>> reshaped_parts(const Array& array,
                                                std::span<const std::int64_t> shape,
                                                std::size_t max_parts);

// Returns the array in another shape as one part, whose elements are gathered block by block.
// Requires: an equal number of elements.
Array gathered(const Array& array, std::span<const std::int64_t> shape);

}  // namespace fsdp::formats::arrays
