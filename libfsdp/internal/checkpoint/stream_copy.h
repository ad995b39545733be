// SPDX-License-Identifier: Apache-2.0
// Copies memory that is not read again soon.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fsdp::internal {

// Copies past the processor's caches if possible: they keep their content, and the target is not
// read before it is written.  For blocks of some MiB this takes a third less time than memcpy.
// Requires: `to` begins at a multiple of 64 bytes and has the size of `from`; they do not overlap.
inline void stream_copy(std::span<const std::byte> from, std::span<std::byte> to) {
  std::size_t done = 0;
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  for (; from.size() - done >= kLine; done += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from.data() + done);
    auto* const target = reinterpret_cast<__m128i*>(to.data() + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  // Makes the copy visible to a thread that is told of it.
  _mm_sfence();
#endif
  if (done != from.size()) std::memcpy(to.data() + done, from.data() + done, from.size() - done);
}

}  // namespace fsdp::internal
