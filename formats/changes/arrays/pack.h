// SPDX-License-Identifier: Apache-2.0
// Numbers of 8 bits or fewer, packed into bytes and words; decode.h reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// Returns elements of `dtype`, an integer one, that hold the lowest `bits` of each code one after
// the other, from the lowest bits of an element on.  Elements are filled up with zeros at the end
// of a row.  `first_dimension`: codes follow each other along the first of two dimensions, else
// along the last dimension.  The shape is that of the codes but for the packed dimension, which
// gets packed_size elements.
// Requires: the codes are bytes; numbers that are packed along the first dimension end where an
// element ends.
Array packed(const Array& codes, unsigned bits, DType dtype, bool first_dimension = false);

}  // namespace fsdp::formats::arrays
