// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_quantized.py compares with the packages whose arithmetic this is.
#include "formats/changes/quantized/quantizers.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::quantized {
namespace {

using test::expect_error;
using Codes = std::vector<std::uint8_t>;

constexpr Dialect kOurs = Dialect::kCompressedTensors;
const Scheme kFloat8{.sharing = Sharing::kRows};
const Scheme kInt4{
    .numbers = NumberKind::kInteger, .bits = 4, .sharing = Sharing::kGroups, .columns = 4};
const Scheme kMxfp4{.bits = 4, .sharing = Sharing::kGroups, .columns = 32, .powers = true};

Codes codes(const arrays::Quantizer& quantizer, std::vector<float> elements) {
  float least = elements[0];
  float most = elements[0];
  for (const float element : elements) {
    least = std::min(least, element);
    most = std::max(most, element);
  }
  Codes out(elements.size());
  quantizer.encode(elements, quantizer.scale(least, most), out);
  return out;
}

TEST(Quantizers, the_largest_becomes_the_largest_number) {
  const auto quantizer = quantizer_of(kOurs, kFloat8, DType::kFloat32, 0);
  EXPECT_EQ(quantizer->scale(-7, 3).stored, 7.0F / 448);
  // 0x7E is 448, 0xFE -448, 0x38 is 1.
  EXPECT_EQ(codes(*quantizer, {-448, 1, 0, 448}), (Codes{0xFE, 0x38, 0, 0x7E}));
}

TEST(Quantizers, the_scale_of_zeros_is_the_epsilon_of_the_dtype) {
  for (const auto& [dtype, epsilon] :
       {std::pair{DType::kBFloat16, 0x1p-7F}, std::pair{DType::kFloat16, 0x1p-10F},
        std::pair{DType::kFloat32, 0x1p-23F}})
    EXPECT_EQ(quantizer_of(kOurs, kFloat8, dtype, 0)->scale(0, 0).stored, epsilon);
}

TEST(Quantizers, scales_are_rounded_to_the_dtype_of_the_weight) {
  // 3 / 448 in bfloat16: 8 significant bits.
  EXPECT_EQ(quantizer_of(kOurs, kFloat8, DType::kBFloat16, 0)->scale(0, 3).stored, 219 * 0x1p-15F);
}

TEST(Quantizers, packed_integers_begin_at_0) {
  // Steps of 1: the scale is 7.5 / 7.5.
  EXPECT_EQ(codes(*quantizer_of(kOurs, kInt4, DType::kFloat32, 0), {-7.5F, -1, 0, 2.5F}),
            (Codes{0, 7, 8, 10}));
}

TEST(Quantizers, a_zero_point_moves_the_range) {
  Scheme scheme = kInt4;
  scheme.symmetric = false;
  const auto quantizer = quantizer_of(kOurs, scheme, DType::kFloat32, 0);
  const arrays::BlockScale scale = quantizer->scale(0, 15);
  EXPECT_EQ(scale.stored, 1);
  EXPECT_EQ(scale.zero, -8);
  EXPECT_EQ(codes(*quantizer, {0, 15, 7, 8}), (Codes{0, 15, 7, 8}));
  // Blocks of zeros, and of what is too small for a scale.
  EXPECT_EQ(quantizer->scale(0, 0).zero, 0);
  EXPECT_EQ(quantizer->scale(-0x1p-149F, 0).zero, 7);
}

TEST(Quantizers, powers_of_two_follow_the_largest) {
  const auto quantizer = quantizer_of(kOurs, kMxfp4, DType::kFloat32, 0);
  EXPECT_EQ(quantizer->scale(0, 4).stored, 127);     // 4 = 2^2
  EXPECT_EQ(quantizer->scale(0, 6.9F).stored, 127);  // less than 1.75 * 4
  EXPECT_EQ(quantizer->scale(0, 7).stored, 128);
  EXPECT_EQ(quantizer->scale(0, 0).stored, 0);
  expect_error(ErrorCode::kUnsupported, "too large for a power of two",
               [&] { quantizer->scale(0, std::numeric_limits<float>::max()); });
}

TEST(Quantizers, ties_go_to_the_even_code) {
  const auto quantizer = quantizer_of(kOurs, kMxfp4, DType::kFloat32, 0);
  EXPECT_EQ(codes(*quantizer, {4, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, -0.25F, -0.0F}),
            (Codes{6, 0, 2, 2, 4, 4, 6, 6, 8, 0}));
  // modelopt's MXFP4: towards zero, and zero is negative.
  const auto theirs = quantizer_of(Dialect::kModelOpt, kMxfp4, DType::kFloat32, 0);
  EXPECT_EQ(codes(*theirs, {6, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, -0.25F, 0}),
            (Codes{7, 0, 1, 2, 3, 4, 5, 6, 8, 8}));
}

TEST(Quantizers, a_second_scale_fills_the_range_of_the_first) {
  const Scheme scheme{.bits = 4, .sharing = Sharing::kGroups, .columns = 16, .second_scale = true};
  EXPECT_EQ(second_scale_of(kOurs, DType::kFloat32, 2688), 1);
  const auto ours = quantizer_of(kOurs, scheme, DType::kFloat32, 2688);
  EXPECT_EQ(ours->scale(0, 2688).stored, 448);
  EXPECT_EQ(ours->scale(0, 0).stored, 0.125F);
  EXPECT_EQ(second_scale_of(Dialect::kModelOpt, DType::kFloat32, 2688), 1);
  const auto theirs = quantizer_of(Dialect::kModelOpt, scheme, DType::kFloat32, 2688);
  EXPECT_EQ(theirs->scale(0, 2688).stored, 448);
  EXPECT_EQ(theirs->scale(0, 0).stored, 1);
}

}  // namespace
}  // namespace fsdp::formats::quantized
