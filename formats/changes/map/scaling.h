// SPDX-License-Identifier: Apache-2.0
// Applies dequantize and quantize to a rule's arrays.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/map/operation.h"

namespace fsdp::formats::map {

// Returns how many tensors a weight is stored in: its numbers, its scales, ...
std::size_t tensors_of_weight(const Operation& operation);

// `arrays`: all numbers, then their scales in the same order, then what else is stored of a weight,
// in the order of quantized::Role.
// Throws: kShape, kDtype, kOverflow, saying the shapes; what `parameter` throws, and what reading
// the small tensors that tell a shape throws.
std::vector<arrays::Array> dequantized(const Operation& operation,
                                       std::span<const arrays::Array> arrays,
                                       const ParameterValue& parameter);

// Returns arrays in that order.  Scales of scales are the same for all arrays of a rule, and all
// their elements are read for them.  Throws: as above.
std::vector<arrays::Array> quantized(const Operation& operation,
                                     std::span<const arrays::Array> arrays,
                                     const ParameterValue& parameter);

}  // namespace fsdp::formats::map
