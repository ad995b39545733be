// SPDX-License-Identifier: Apache-2.0
// Conversion of elements from one dtype to another, as torch.Tensor.to rounds them.
#pragma once

#include <cstddef>
#include <span>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

// Returns whether the dtype is float64, float32, float16, bfloat16 or an 8-bit float.
bool is_floating(DType dtype) noexcept;

// Returns whether `cast` converts between the two: both are floating.
bool can_cast(DType from, DType to) noexcept;

// Casts elements.  Rounds to nearest, ties to even; overflow becomes infinity if the type has one
// and NaN otherwise, as PyTorch on a CPU does. float64 goes to a narrower type through float32 and
// is rounded twice, as in PyTorch.  NaN stays NaN; docs/numerics.md says which NaN.  Requires:
// can_cast; `out` holds as many elements as `in`; they do not overlap.
void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

}  // namespace fsdp::formats
