// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "formats/bytes/base/float16.h"
#include "formats/bytes/base/vector_clones.h"

namespace fsdp::formats {
namespace {

// Elements converted at a time: as float32 they stay in a core's first-level cache.
constexpr std::size_t kBlock = 2048;

constexpr std::uint32_t kInfinity = 0x7F800000;  // of float32

// How a small float encodes values that are not finite.
enum class Specials {
  kIeee,         // the largest exponent is infinity and NaN
  kNanAlone,     // no infinity; all bits but the sign are NaN ("fn")
  kNegativeZero  // no infinity, no negative zero; its code is NaN ("fnuz")
};

// A float of a sign, `kExponent` and `kMantissa` bits.
template <int kExponent, int kMantissa, int kBias, Specials kSpecials>
struct SmallFloat {
  static constexpr int kBits = 1 + kExponent + kMantissa;
  using Code = std::conditional_t<kBits == 8, std::uint8_t, std::uint16_t>;
  static constexpr std::uint32_t kSign = 1U << (kBits - 1);
  static constexpr int kDropped = 23 - kMantissa;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23U;
  // The code of infinity, or of the NaN that stands in for it.
  static constexpr std::uint32_t kOverflow = kSpecials == Specials::kIeee
                                                 ? ((1U << kExponent) - 1) << kMantissa
                                             : kSpecials == Specials::kNanAlone ? kSign - 1
                                                                                : kSign;
  // A float32 whose last bit is worth the smallest number this type has: adding it rounds to a
  // multiple of that number.
  static constexpr std::uint32_t kMagic =
      static_cast<std::uint32_t>(1 - kBias - kMantissa + 23 + 127) << 23U;
  static constexpr std::uint32_t kLeastNormal = static_cast<std::uint32_t>(1 - kBias + 127) << 23U;

  // Has no branches, so that compilers make vector instructions of it.
  static FSDP_INTO_CALLER Code encode(std::uint32_t bits) {
    const std::uint32_t abs = bits & 0x7FFFFFFF;
    const std::uint32_t sign = (bits >> 31U) << (kBits - 1);
    const std::uint32_t half_even = ((1U << (kDropped - 1)) - 1) + ((abs >> kDropped) & 1U);
    const std::uint32_t normal = (abs - kRebias + half_even) >> kDropped;
    const std::uint32_t tiny =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(abs) + std::bit_cast<float>(kMagic)) -
        kMagic;
    std::uint32_t code = abs < kLeastNormal ? tiny : normal;
    code = code > kOverflow ? kOverflow : code;  // infinity and NaN as well
    if constexpr (kSpecials == Specials::kIeee) {
      constexpr std::uint32_t kQuiet = kOverflow | (1U << (kMantissa - 1));
      const std::uint32_t nan =
          kBits == 8 ? kSign - 1 : kQuiet | ((abs >> kDropped) & (kQuiet - 1));
      code = abs > kInfinity ? nan : code;
    }
    if constexpr (kSpecials == Specials::kNegativeZero) {
      return static_cast<Code>(code == 0 || code == kOverflow ? code : code | sign);
    }
    return static_cast<Code>(code | sign);
  }

  static constexpr FSDP_INTO_CALLER std::uint32_t decode(std::uint32_t code) {
    const std::uint32_t sign = (code & kSign) << (32 - kBits);
    const std::uint32_t abs = code & (kSign - 1);
    const std::uint32_t shifted = abs << kDropped;
    const std::uint32_t normal = shifted + kRebias;
    // A subnormal: added to the mantissa of the least normal number, which is then subtracted.
    const std::uint32_t tiny = std::bit_cast<std::uint32_t>(
        std::bit_cast<float>(shifted + kLeastNormal) - std::bit_cast<float>(kLeastNormal));
    std::uint32_t bits = (abs >> kMantissa) == 0 ? tiny : normal;
    if constexpr (kSpecials == Specials::kIeee) {
      const std::uint32_t nan = 0x7FC00000 | shifted;
      bits = abs >= kOverflow ? (abs == kOverflow ? kInfinity : nan) : bits;
    } else if constexpr (kSpecials == Specials::kNanAlone) {
      bits = abs == kOverflow ? 0x7FC00000 | shifted : bits;
    } else {
      return code == kSign ? 0x7F800001 : bits | sign;
    }
    return bits | sign;
  }
};

using Float16 = SmallFloat<5, 10, 15, Specials::kIeee>;
using Float8E5M2 = SmallFloat<5, 2, 15, Specials::kIeee>;
using Float8E4M3Fn = SmallFloat<4, 3, 7, Specials::kNanAlone>;
using Float8E5M2Fnuz = SmallFloat<5, 2, 16, Specials::kNegativeZero>;
using Float8E4M3Fnuz = SmallFloat<4, 3, 8, Specials::kNegativeZero>;

struct BFloat16 {
  using Code = std::uint16_t;
  static FSDP_INTO_CALLER Code encode(std::uint32_t bits) {
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16U) & 1U)) >> 16U;
    return static_cast<Code>((bits & 0x7FFFFFFF) > kInfinity ? 0x7FC0 : rounded);
  }
  static constexpr FSDP_INTO_CALLER std::uint32_t decode(std::uint32_t code) { return code << 16U; }
};

// A float of 8 exponent bits alone: 2^(code - 127); 255 is NaN.
struct Float8E8M0 {
  using Code = std::uint8_t;
  static FSDP_INTO_CALLER Code encode(std::uint32_t bits) {
    const std::uint32_t exponent = (bits >> 23U) & 0xFF;
    const std::uint32_t rest = bits & 0x7FFFFF;
    const bool up = rest > 0x400000 || (rest == 0x400000 && exponent > 0);
    return static_cast<Code>(exponent == 0xFF ? 0xFF : exponent + (up ? 1 : 0));
  }
  static constexpr FSDP_INTO_CALLER std::uint32_t decode(std::uint32_t code) {
    if (code == 0) return 0x00400000;
    return code == 0xFF ? 0x7F800001 : code << 23U;
  }
};

// Calls `each` for every position.  Most blocks are whole: a loop of that fixed length becomes
// vector instructions.
template <typename Each>
FSDP_INTO_CALLER void for_each_position(std::size_t count, const Each& each) {
  if (count == kBlock) {
    for (std::size_t i = 0; i < kBlock; ++i) each(i);
  } else {
    for (std::size_t i = 0; i < count; ++i) each(i);
  }
}

// Loads an element that need not be aligned.
template <typename Type>
FSDP_INTO_CALLER Type load(const std::byte* elements, std::size_t i) {
  Type element;
  std::memcpy(&element, elements + i * sizeof element, sizeof element);
  return element;
}

template <typename Type>
FSDP_INTO_CALLER void store(Type element, std::byte* elements, std::size_t i) {
  std::memcpy(elements + i * sizeof element, &element, sizeof element);
}

// The float32 bits of each code of an 8-bit type.
template <typename Type>
constexpr std::array<std::uint32_t, 256> kDecoded = [] {
  std::array<std::uint32_t, 256> decoded{};
  for (std::uint32_t code = 0; code < decoded.size(); ++code) decoded[code] = Type::decode(code);
  return decoded;
}();

template <typename Type>
FSDP_INTO_CALLER void decode_all(const std::byte* in, std::size_t count, std::byte* out) {
  for_each_position(count, [&](std::size_t i) {
    const auto code = load<typename Type::Code>(in, i);
    if constexpr (sizeof code == 1) {
      store(kDecoded<Type>[code], out, i);
    } else {
      store(Type::decode(code), out, i);
    }
  });
}

template <typename Type>
FSDP_INTO_CALLER void encode_all(const std::byte* in, std::size_t count, std::byte* out) {
  for_each_position(count, [&](std::size_t i) {
    store(static_cast<typename Type::Code>(Type::encode(load<std::uint32_t>(in, i))), out, i);
  });
}

FSDP_INTO_CALLER void narrow(const std::byte* in, std::size_t count, std::byte* out) {
  for_each_position(count,
                    [&](std::size_t i) { store(static_cast<float>(load<double>(in, i)), out, i); });
}

FSDP_INTO_CALLER void widen(const std::byte* in, std::size_t count, std::byte* out) {
  for_each_position(count, [&](std::size_t i) { store(double{load<float>(in, i)}, out, i); });
}

FSDP_WIDE_VECTORS void decode(DType from, const std::byte* __restrict in, std::size_t count,
                              std::byte* __restrict out) {
  switch (from) {
    case DType::kFloat64:
      return narrow(in, count, out);
    case DType::kFloat16:
      return decode_all<Float16>(in, count, out);
    case DType::kBFloat16:
      return decode_all<BFloat16>(in, count, out);
    case DType::kFloat8E4M3FN:
      return decode_all<Float8E4M3Fn>(in, count, out);
    case DType::kFloat8E5M2:
      return decode_all<Float8E5M2>(in, count, out);
    case DType::kFloat8E4M3FNUZ:
      return decode_all<Float8E4M3Fnuz>(in, count, out);
    case DType::kFloat8E5M2FNUZ:
      return decode_all<Float8E5M2Fnuz>(in, count, out);
    case DType::kFloat8E8M0FNU:
      return decode_all<Float8E8M0>(in, count, out);
    default:
      std::memcpy(out, in, count * sizeof(float));
  }
}

FSDP_WIDE_VECTORS void encode(const std::byte* __restrict in, std::size_t count, DType to,
                              std::byte* __restrict out) {
  switch (to) {
    case DType::kFloat64:
      return widen(in, count, out);
    case DType::kFloat16:
      return encode_all<Float16>(in, count, out);
    case DType::kBFloat16:
      return encode_all<BFloat16>(in, count, out);
    case DType::kFloat8E4M3FN:
      return encode_all<Float8E4M3Fn>(in, count, out);
    case DType::kFloat8E5M2:
      return encode_all<Float8E5M2>(in, count, out);
    case DType::kFloat8E4M3FNUZ:
      return encode_all<Float8E4M3Fnuz>(in, count, out);
    case DType::kFloat8E5M2FNUZ:
      return encode_all<Float8E5M2Fnuz>(in, count, out);
    case DType::kFloat8E8M0FNU:
      return encode_all<Float8E8M0>(in, count, out);
    default:
      std::memcpy(out, in, count * sizeof(float));
  }
}

void to_float32(DType from, const std::byte* in, std::size_t count, std::byte* out) {
  if (from == DType::kFloat16 && has_float16_instructions()) {
    decode_float16(in, count, out);
  } else {
    decode(from, in, count, out);
  }
}

void from_float32(const std::byte* in, std::size_t count, DType to, std::byte* out) {
  if (to == DType::kFloat16 && has_float16_instructions()) {
    encode_float16(in, count, out);
  } else {
    encode(in, count, to, out);
  }
}

// Returns the value of each code of a float with a sign, exponent bits and a mantissa.
std::array<float, 64> table_of(unsigned bits, unsigned mantissa) {
  std::array<float, 64> out{};
  const unsigned exponent_bits = bits - 1 - mantissa;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  for (unsigned code = 0; code < 1U << bits; ++code) {
    const unsigned exponent = code >> mantissa & ((1U << exponent_bits) - 1);
    const unsigned rest = code & ((1U << mantissa) - 1);
    const unsigned digits = exponent == 0 ? rest : rest | 1U << mantissa;
    const int power =
        (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - static_cast<int>(mantissa);
    const float magnitude = std::ldexp(static_cast<float>(digits), power);
    out[code] = code >> (bits - 1) != 0 ? -magnitude : magnitude;
  }
  return out;
}

}  // namespace

bool is_floating(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
      return true;
    default:
      return false;
  }
}

bool can_cast(DType from, DType to) noexcept {
  return is_floating(from) && is_floating(to);
}

void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out) {
  if (from == to) {
    // std::ranges::copy of GCC 12 copies constant bytes one by one.
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  const auto from_item = static_cast<std::size_t>(item_bytes(from));
  const auto to_item = static_cast<std::size_t>(item_bytes(to));
  const std::size_t count = in.size() / from_item;
  std::array<std::byte, kBlock * sizeof(float)> floats;
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    const std::byte* const source = in.data() + at * from_item;
    std::byte* const target = out.data() + at * to_item;
    if (to == DType::kFloat32) {
      to_float32(from, source, n, target);
    } else if (from == DType::kFloat32) {
      from_float32(source, n, to, target);
    } else {
      to_float32(from, source, n, floats.data());
      from_float32(floats.data(), n, to, target);
    }
  }
}

bool is_packed_float(DType dtype) noexcept {
  return values_of_element(dtype) != 1;
}

std::uint64_t values_of_element(DType dtype) noexcept {
  if (dtype == DType::kFloat4E2M1FNx2) return 2;
  return dtype == DType::kFloat6E2M3FNx4 || dtype == DType::kFloat6E3M2FNx4 ? 4 : 1;
}

std::span<const float> values_by_code(DType dtype) {
  static const std::array<float, 64> e2m1 = table_of(4, 1);
  static const std::array<float, 64> e2m3 = table_of(6, 3);
  static const std::array<float, 64> e3m2 = table_of(6, 2);
  if (dtype == DType::kFloat4E2M1FNx2) return std::span(e2m1).first(16);
  return dtype == DType::kFloat6E2M3FNx4 ? e2m3 : e3m2;
}

void unpack_floats(DType dtype, std::span<const std::byte> in, std::span<float> out) {
  const std::span<const float> values = values_by_code(dtype);
  const std::size_t item = item_bytes(dtype);
  const std::size_t each = values_of_element(dtype);
  const auto bits = static_cast<unsigned>(8 * item / each);
  for (std::size_t i = 0; i < out.size(); i += each) {
    unsigned element = 0;
    for (std::size_t b = 0; b < item; ++b)
      element |= std::to_integer<unsigned>(in[i / each * item + b]) << (8 * b);
    for (std::size_t v = 0; v < each; ++v)
      out[i + v] = values[element >> (v * bits) & ((1U << bits) - 1)];
  }
}

}  // namespace fsdp::formats
