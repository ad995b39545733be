// SPDX-License-Identifier: Apache-2.0
// The arithmetic of quantization by round to nearest, bit for bit that of the package whose dialect
// it is: compressed-tensors 0.20 and nvidia-modelopt 0.47.
#pragma once

#include <memory>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arrays/quantize.h"
#include "formats/changes/quantized/scheme.h"

namespace fsdp::formats::quantized {

// Returns what quantizes weights of dtype `weight` (bfloat16, float16 or float32).
// `tensor_most`: the largest magnitude of the tensor, or of all tensors that share the scale of the
// scales; only if the scheme has one.
// Codes of `encode`: float8_e4m3fn, two's complement of integers of 8 bits that are not packed,
// E2M1, and packed integers as they are packed.
// Requires: a scheme of quantize_model's.
std::shared_ptr<const arrays::Quantizer> quantizer_of(Dialect dialect, const Scheme& scheme,
                                                      DType weight, float tensor_most);

// Returns the scale of the scales, as it is stored.
float second_scale_of(Dialect dialect, DType weight, float tensor_most);

}  // namespace fsdp::formats::quantized
