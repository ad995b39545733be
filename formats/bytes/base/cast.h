// SPDX-License-Identifier: Apache-2.0
// Conversion of elements from one dtype to another, as torch.Tensor.to rounds them.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Note [packed floats]
// Floats of 4 and 6 bits, of which an element of a dtype holds several, the first in the lowest
// bits: E2M1, E2M3 and E3M2 of OCP Microscaling Formats 1.0, which have no infinity and no NaN.
// PyTorch does not cast them.

// Returns whether an element holds several floats.
bool is_packed_float(DType dtype) noexcept;

// Returns the values in an element: 2 for kFloat4E2M1FNx2, 4 for kFloat6*x4, 1 for others.
std::uint64_t values_of_element(DType dtype) noexcept;

// Returns the value of each code.  Requires: is_packed_float.
std::span<const float> values_by_code(DType dtype);

// Makes the values of elements float32, which is exact.  Requires: is_packed_float; `out` holds
// values_of_element for each element.
void unpack_floats(DType dtype, std::span<const std::byte> in, std::span<float> out);

}  // namespace fsdp::formats
