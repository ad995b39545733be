// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_casts.py compares every float16 with PyTorch, by whichever way casts go.
#include "formats/bytes/base/float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

// The value of a finite code by its definition.
float value_of(std::uint16_t code) {
  const int exponent = (code >> 10U) & 0x1F;
  const auto mantissa = static_cast<float>(code & 0x3FFU);
  const float size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (code & 0x8000U) != 0 ? -size : size;
}

std::vector<float> decoded(const std::vector<std::uint16_t>& codes) {
  std::vector<float> out(codes.size());
  decode_float16(std::as_bytes(std::span(codes)).data(), codes.size(),
                 std::as_writable_bytes(std::span(out)).data());
  return out;
}

std::vector<std::uint16_t> encoded(const std::vector<float>& numbers) {
  std::vector<std::uint16_t> out(numbers.size());
  encode_float16(std::as_bytes(std::span(numbers)).data(), numbers.size(),
                 std::as_writable_bytes(std::span(out)).data());
  return out;
}

TEST(Float16, every_finite_number_comes_back) {
  if (!has_float16_instructions()) GTEST_SKIP() << "the processor has no such instructions";
  std::vector<std::uint16_t> codes;
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    if ((code & 0x7C00U) == 0x7C00U) continue;
    codes.push_back(static_cast<std::uint16_t>(code));
    values.push_back(value_of(codes.back()));
  }
  EXPECT_EQ(decoded(codes), values);
  EXPECT_EQ(encoded(values), codes);
}

TEST(Float16, halves_go_to_even_and_nan_stays_nan) {
  if (!has_float16_instructions()) GTEST_SKIP() << "the processor has no such instructions";
  EXPECT_EQ(encoded({1 + 0x1p-11F, 1 + 0x3p-11F, 65519, 65520, -1e30F, 0x1p-25F, 0x3p-25F,
                     std::bit_cast<float>(0x7F802000U)}),
            (std::vector<std::uint16_t>{0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0xFC00, 0, 2, 0x7E01}));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(decoded({0xFC01})[0]), 0xFFC02000U);
}

TEST(Float16, any_number_of_elements_is_written_and_no_more) {
  if (!has_float16_instructions()) GTEST_SKIP() << "the processor has no such instructions";
  for (std::size_t count = 0; count < 20; ++count) {
    const std::vector<std::uint16_t> codes(count, 0x3C00);
    std::vector<float> out(20, 7);
    decode_float16(std::as_bytes(std::span(codes)).data(), count,
                   std::as_writable_bytes(std::span(out)).data());
    std::vector<float> expected(20, 7);
    std::fill_n(expected.begin(), count, 1.0F);
    EXPECT_EQ(out, expected);
    std::vector<std::uint16_t> back(20, 7);
    encode_float16(std::as_bytes(std::span(out)).data(), count,
                   std::as_writable_bytes(std::span(back)).data());
    std::vector<std::uint16_t> codes_and_rest(20, 7);
    std::fill_n(codes_and_rest.begin(), count, std::uint16_t{0x3C00});
    EXPECT_EQ(back, codes_and_rest);
  }
}

}  // namespace
}  // namespace fsdp::formats
