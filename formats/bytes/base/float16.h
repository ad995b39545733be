// SPDX-License-Identifier: Apache-2.0
// Converts float16 from and to float32 by the processor's own instructions.
#pragma once

#include <cstddef>

namespace fsdp::formats {

// Returns whether the processor and this build have these instructions.
bool has_float16_instructions() noexcept;

// Converts `count` elements of float16 to float32, exactly; a NaN becomes a quiet one.  Requires:
// has_float16_instructions(); `in` and `out` do not overlap.
void decode_float16(const std::byte* in, std::size_t count, std::byte* out) noexcept;

// Converts `count` elements of float32 to float16.  Rounds to nearest, ties to even; a NaN becomes
// a quiet one and keeps the upper part of its payload.  Requires: as for decode_float16.
void encode_float16(const std::byte* in, std::size_t count, std::byte* out) noexcept;

}  // namespace fsdp::formats
