// SPDX-License-Identifier: Apache-2.0
// The arithmetic of quantization by round to nearest, bit for bit that of the package whose dialect
// it is: compressed-tensors 0.20, nvidia-modelopt 0.47 and transformers 5.
#pragma once

#include <memory>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arrays/quantize.h"
#include "formats/changes/quantized/scheme.h"

namespace fsdp::formats::quantized {

// Note [how transformers quantizes a block]
// In float32, every step rounded to nearest, ties to even: with `most` the largest magnitude of the
// block, f = (1 / most) * 448; the scale is 1 / f, and a number is its element times f, cut to what
// float8_e4m3fn holds (448) and cast.  Where f would not be finite (zeros, or nothing above 2^-128
// * 448) it is 1.

// Returns what quantizes weights of dtype `weight` (bfloat16, float16 or float32; any floating one
// for kTransformersFp8).
// `tensor_most`: the largest magnitude of the tensor, or of all tensors that share the scale of the
// scales; only if the scheme has one.
// Codes of `encode`: float8_e4m3fn, two's complement of integers of 8 bits that are not packed,
// E2M1, and packed integers as they are packed.
// Requires: a scheme of known_scheme's, or one of numbers of 8 bits of kTransformersFp8.
std::shared_ptr<const arrays::Quantizer> quantizer_of(Dialect dialect, const Scheme& scheme,
                                                      DType weight, float tensor_most);

// Returns the scale of the scales, as it is stored.
float second_scale_of(Dialect dialect, DType weight, float tensor_most);

}  // namespace fsdp::formats::quantized
