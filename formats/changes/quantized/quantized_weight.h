// SPDX-License-Identifier: Apache-2.0
// The tensors that a dialect stores for a weight; stored_weight.h reads them.
#pragma once

#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/quantized/scaled_shape.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/changes/quantized/stored_weight.h"

namespace fsdp::formats::quantized {

// All require a scheme of known_scheme's, or one of numbers of 8 bits of kTransformersFp8.

// Returns whether the numbers have a name that weights do not have.
bool is_packed(Dialect dialect, const Scheme& scheme);
// Returns the dtype in which numbers lie.
DType number_dtype(Dialect dialect, const Scheme& scheme);
// Returns what is stored of a weight, in the order of Role.
std::vector<Role> roles_of(Dialect dialect, const Scheme& scheme);

// Returns why a weight of that shape cannot be quantized; empty: it can.
std::string unfit(Dialect dialect, const Scheme& scheme, const Shape& shape);

// Quantizes a weight.  `tensor_most`: as quantizer_of takes it.
// Requires: a dtype that quantizer_of takes, a shape that is fit.
// Throws while the tensors are read: as arrays::Quantization.
StoredWeight quantized_weight(Dialect dialect, const Scheme& scheme, const arrays::Array& weight,
                              float tensor_most);

}  // namespace fsdp::formats::quantized
