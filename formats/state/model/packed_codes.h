// SPDX-License-Identifier: Apache-2.0
// Packed floats with a byte for each, so that they are compared as floats of 8 bits are.
#pragma once

#include <cstddef>
#include <span>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

// Writes a byte for each value of the elements: the sign in the highest bit, the magnitude's code
// in the lowest ones.  Returns what was written. Requires: is_packed_float; room for
// values_of_element bytes for each element.
std::span<const std::byte> spread_codes(DType dtype, std::span<const std::byte> elements,
                                        std::span<std::byte> out);

// Writes the value of each byte of spread_codes.  Requires: `out` is as long as `codes`, or longer.
void numbers_of_codes(DType dtype, std::span<const std::byte> codes, std::span<double> out);

}  // namespace fsdp::formats
