// SPDX-License-Identifier: Apache-2.0
// float16 to and from float32 by the processor's own instructions.
#pragma once

#include <cstddef>

namespace fsdp::formats {

// Returns whether the processor and this build have them; without them the other two do nothing.
bool has_float16_instructions() noexcept;

// `count` elements of float16 as float32, exactly; a NaN becomes a quiet one.  Requires:
// has_float16_instructions(); the two do not overlap.
void decode_float16(const std::byte* in, std::size_t count, std::byte* out) noexcept;

// Rounds to nearest, ties to even; a NaN becomes a quiet one, and keeps the upper part of its
// payload.  Requires: as above.
void encode_float16(const std::byte* in, std::size_t count, std::byte* out) noexcept;

}  // namespace fsdp::formats
