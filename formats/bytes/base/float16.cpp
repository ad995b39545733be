// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/float16.h"

#include <array>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FSDP_F16C __attribute__((target("avx,f16c")))
#include <immintrin.h>
#endif

namespace fsdp::formats {

#ifdef FSDP_F16C
namespace {

constexpr std::size_t kLanes = 8;

FSDP_F16C void decode_lanes(const std::byte* in, std::byte* out) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  _mm256_storeu_ps(reinterpret_cast<float*>(out), _mm256_cvtph_ps(codes));
}

FSDP_F16C void encode_lanes(const std::byte* in, std::byte* out) {
  const __m256 numbers = _mm256_loadu_ps(reinterpret_cast<const float*>(in));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm256_cvtps_ph(numbers, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace

bool has_float16_instructions() noexcept {
  static const bool has = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
  return has;
}

FSDP_F16C void decode_float16(const std::byte* in, std::size_t count, std::byte* out) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) decode_lanes(in + 2 * i, out + 4 * i);
  if (i == count) return;
  std::array<std::byte, 2 * kLanes> last_in{};
  std::array<std::byte, 4 * kLanes> last_out{};
  std::memcpy(last_in.data(), in + 2 * i, 2 * (count - i));
  decode_lanes(last_in.data(), last_out.data());
  std::memcpy(out + 4 * i, last_out.data(), 4 * (count - i));
}

FSDP_F16C void encode_float16(const std::byte* in, std::size_t count, std::byte* out) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) encode_lanes(in + 4 * i, out + 2 * i);
  if (i == count) return;
  std::array<std::byte, 4 * kLanes> last_in{};
  std::array<std::byte, 2 * kLanes> last_out{};
  std::memcpy(last_in.data(), in + 4 * i, 4 * (count - i));
  encode_lanes(last_in.data(), last_out.data());
  std::memcpy(out + 2 * i, last_out.data(), 2 * (count - i));
}
#else
bool has_float16_instructions() noexcept {
  return false;
}
void decode_float16(const std::byte*, std::size_t, std::byte*) noexcept {}
void encode_float16(const std::byte*, std::size_t, std::byte*) noexcept {}
#endif

}  // namespace fsdp::formats
