// SPDX-License-Identifier: Apache-2.0
// A few values by hand; tests/interop/check_casts.py compares every cast with PyTorch.
#include "formats/bytes/base/cast.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

template <typename Out, typename In>
std::vector<Out> cast_all(DType from, const std::vector<In>& in, DType to) {
  std::vector<Out> out(in.size());
  cast(from, std::as_bytes(std::span(in)), to, std::as_writable_bytes(std::span(out)));
  return out;
}

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Cast, halves_are_rounded_to_even) {
  // 1 + 2^-8 lies in the middle between two bfloat16, and so does 1 + 3 * 2^-8.
  EXPECT_EQ((cast_all<std::uint16_t>(DType::kFloat32,
                                     std::vector<float>{1.0F + 0x1p-8F, 1.0F + 0x3p-8F, -1.0F},
                                     DType::kBFloat16)),
            (std::vector<std::uint16_t>{0x3F80, 0x3F82, 0xBF80}));
  EXPECT_EQ((cast_all<std::uint16_t>(DType::kFloat32,
                                     std::vector<float>{1.0F + 0x1p-11F, 1.0F + 0x3p-11F, 65519.0F},
                                     DType::kFloat16)),
            (std::vector<std::uint16_t>{0x3C00, 0x3C02, 0x7BFF}));
}

TEST(Cast, what_is_too_large_becomes_infinity_or_the_nan_of_types_without_one) {
  const std::vector<float> large = {65520.0F, -1e30F, kInf};
  EXPECT_EQ((cast_all<std::uint16_t>(DType::kFloat32, large, DType::kFloat16)),
            (std::vector<std::uint16_t>{0x7C00, 0xFC00, 0x7C00}));
  EXPECT_EQ((cast_all<std::uint8_t>(DType::kFloat32, large, DType::kFloat8E5M2)),
            (std::vector<std::uint8_t>{0x7C, 0xFC, 0x7C}));
  EXPECT_EQ((cast_all<std::uint8_t>(DType::kFloat32, large, DType::kFloat8E4M3FN)),
            (std::vector<std::uint8_t>{0x7F, 0xFF, 0x7F}));
  EXPECT_EQ((cast_all<std::uint8_t>(DType::kFloat32, large, DType::kFloat8E4M3FNUZ)),
            (std::vector<std::uint8_t>{0x80, 0x80, 0x80}));
}

TEST(Cast, subnormal_numbers_are_kept) {
  EXPECT_EQ((cast_all<float>(DType::kFloat16, std::vector<std::uint16_t>{0x0001, 0x83FF, 0x0000},
                             DType::kFloat32)),
            (std::vector<float>{0x1p-24F, -0x3FFp-24F, 0.0F}));
  EXPECT_EQ(
      (cast_all<std::uint8_t>(DType::kFloat32, std::vector<float>{0x1p-9F, 0x1p-10F, 0x3p-10F},
                              DType::kFloat8E4M3FN)),
      (std::vector<std::uint8_t>{0x01, 0x00, 0x02}));
}

TEST(Cast, float64_is_rounded_by_way_of_float32) {
  // A little above the middle of two bfloat16, but not as a float32.
  EXPECT_EQ((cast_all<std::uint16_t>(DType::kFloat64, std::vector<double>{1.0 + 0x1p-8 + 0x1p-40},
                                     DType::kBFloat16)),
            (std::vector<std::uint16_t>{0x3F80}));
}

TEST(Cast, nan_stays_nan) {
  const std::vector<float> nan = {std::bit_cast<float>(0xFFC00001U),
                                  std::bit_cast<float>(0x7F800001U)};
  EXPECT_EQ((cast_all<std::uint16_t>(DType::kFloat32, nan, DType::kBFloat16)),
            (std::vector<std::uint16_t>{0x7FC0, 0x7FC0}));
  EXPECT_EQ((cast_all<std::uint16_t>(DType::kFloat32, nan, DType::kFloat16)),
            (std::vector<std::uint16_t>{0xFE00, 0x7E00}));
  EXPECT_EQ((cast_all<std::uint8_t>(DType::kFloat32, nan, DType::kFloat8E8M0FNU)),
            (std::vector<std::uint8_t>{0xFF, 0xFF}));
}

TEST(Cast, the_same_type_copies_every_bit) {
  EXPECT_EQ((cast_all<std::uint32_t>(DType::kFloat32, std::vector<std::uint32_t>{0x7F800001, 1},
                                     DType::kFloat32)),
            (std::vector<std::uint32_t>{0x7F800001, 1}));
}

TEST(Cast, lengths_beside_the_block_size_are_complete) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2047},
                                  std::size_t{2048}, std::size_t{2049}, std::size_t{5000}}) {
    std::vector<double> in(count);
    for (std::size_t i = 0; i < count; ++i) in[i] = static_cast<double>(i) / 2;
    const auto out = cast_all<float>(DType::kFloat64, in, DType::kFloat32);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], static_cast<float>(in[i])) << i;
  }
}

TEST(Cast, integers_and_complex_numbers_are_not_cast) {
  EXPECT_TRUE(can_cast(DType::kFloat64, DType::kFloat8E8M0FNU));
  EXPECT_FALSE(can_cast(DType::kInt64, DType::kFloat32));
  EXPECT_FALSE(can_cast(DType::kFloat32, DType::kComplex64));
  EXPECT_FALSE(can_cast(DType::kFloat4E2M1FNx2, DType::kFloat32));
}

std::vector<float> unpacked(DType dtype, std::vector<unsigned char> bytes) {
  std::vector<float> out(bytes.size() / item_bytes(dtype) * values_of_element(dtype));
  unpack_floats(dtype, std::as_bytes(std::span(bytes)), out);
  return out;
}

// tests/interop/check_small_floats.py compares all codes with ml_dtypes.
TEST(PackedFloats, the_first_value_lies_in_the_lowest_bits) {
  EXPECT_EQ(unpacked(DType::kFloat4E2M1FNx2, {0x72, 0x9C}), (std::vector<float>{1, 6, -2, -0.5F}));
  // 000001, 111111, 100000, 001000: 0x220FC1 from the lowest bits on.
  const std::vector<float> e2m3 = unpacked(DType::kFloat6E2M3FNx4, {0xC1, 0x0F, 0x22});
  EXPECT_EQ(e2m3, (std::vector<float>{0.125F, -7.5F, -0.0F, 1}));
  EXPECT_TRUE(std::signbit(e2m3[2]));
  EXPECT_EQ(unpacked(DType::kFloat6E3M2FNx4, {0xC1, 0x0F, 0x32}),
            (std::vector<float>{0.0625F, -28, -0.0F, 1}));
}

TEST(PackedFloats, other_dtypes_hold_one_value) {
  EXPECT_FALSE(is_packed_float(DType::kFloat8E8M0FNU));
  EXPECT_EQ(values_of_element(DType::kBits4x2), 1U);
  EXPECT_TRUE(is_packed_float(DType::kFloat6E3M2FNx4));
}

}  // namespace
}  // namespace fsdp::formats
