// SPDX-License-Identifier: Apache-2.0
// Applies dequantize and quantize to a rule's arrays.
#pragma once

#include <span>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/map/operation.h"

namespace fsdp::formats::map {

// `arrays`: all numbers, then their scales in the same order.
// Throws: kShape, kDtype, kOverflow, saying the shapes; what `parameter` throws.
std::vector<arrays::Array> dequantized(const Operation& operation,
                                       std::span<const arrays::Array> arrays,
                                       const ParameterValue& parameter);

// Returns all numbers, then their scales.  Throws: as above.
std::vector<arrays::Array> quantized(const Operation& operation,
                                     std::span<const arrays::Array> arrays,
                                     const ParameterValue& parameter);

}  // namespace fsdp::formats::map
