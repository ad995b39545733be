// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_quantized.py compares whole weights with the packages that packed them.
#include "formats/changes/arrays/decode.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/formats/changes/arrays/byte_operand.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::arrays {
namespace {

using test::expect_error;
using Floats = std::vector<float>;

TEST(Decode, bytes_are_integers) {
  const Array bytes = bytes_array(DType::kInt8, {1, 4}, {0, 127, 128, 255});
  EXPECT_EQ(floats_of(decoded(bytes, {.code = Code::kSigned}, {1, 4})), (Floats{0, 127, -128, -1}));
  EXPECT_EQ(floats_of(decoded(bytes, {.code = Code::kUnsigned}, {1, 4})),
            (Floats{0, 127, 128, 255}));
}

TEST(Decode, the_first_of_two_numbers_in_a_byte_lies_in_its_low_half) {
  const Array bytes = bytes_array(DType::kUInt8, {2, 1}, {0x72, 0x9C});
  const Array numbers = decoded(bytes, {.code = Code::kFloat4, .bits = 4}, {2, 2});
  EXPECT_EQ(floats_of(numbers), (Floats{1, 6, -2, -0.5}));
  const Array signs = decoded(bytes_array(DType::kUInt8, {1, 1}, {0x08}),
                              {.code = Code::kFloat4, .bits = 4}, {1, 2});
  EXPECT_TRUE(std::signbit(floats_of(signs)[0]));
  EXPECT_FALSE(std::signbit(floats_of(signs)[1]));
}

TEST(Decode, a_row_in_words_may_end_inside_a_word) {
  // Nibbles from the lowest on: 0, 1, ..., 7 and 8, 15, then padding.
  const Array words = bytes_array(DType::kInt32, {1, 2}, {0x10, 0x32, 0x54, 0x76, 0xF8, 0, 0, 0});
  const Array numbers = decoded(words, {.code = Code::kOffset, .bits = 4}, {1, 10});
  EXPECT_EQ(floats_of(numbers), (Floats{-8, -7, -6, -5, -4, -3, -2, -1, 0, 7}));
  // Reads may begin anywhere.
  Floats part(3);
  ArrayReader(numbers).read(7, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (Floats{-1, 0, 7}));
}

TEST(Decode, a_number_may_lie_in_two_bytes_and_in_two_words) {
  // Numbers 0, 1, ..., 7 and again, of 3 bits each: 48 bits of 64.
  std::vector<int> bytes(8, 0);
  for (int i = 0; i < 16; ++i) {
    for (int bit = 0; bit < 3; ++bit) {
      const int at = 3 * i + bit;
      if ((i % 8 >> bit & 1) != 0) bytes[static_cast<std::size_t>(at / 8)] |= 1 << at % 8;
    }
  }
  const Array words = bytes_array(DType::kInt32, {1, 2}, bytes);
  EXPECT_EQ(floats_of(decoded(words, {.code = Code::kUnsigned, .bits = 3}, {1, 16})),
            (Floats{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(packed_size(16, 3, DType::kInt32), 2U);
  EXPECT_EQ(packed_size(10, 3, DType::kInt32), 1U);
  EXPECT_EQ(packed_size(11, 3, DType::kInt32), 2U);
  EXPECT_EQ(packed_size(3, 4, DType::kUInt8), 2U);
}

TEST(Decode, numbers_of_several_rows_may_share_a_word) {
  const Array words = bytes_array(DType::kInt32, {1, 2}, {0x10, 0x32, 0x54, 0x76, 8, 9, 10, 11});
  const Array numbers =
      decoded(words, {.code = Code::kUnsigned, .bits = 4, .first_dimension = true}, {8, 2});
  EXPECT_EQ(floats_of(numbers), (Floats{0, 8, 1, 0, 2, 9, 3, 0, 4, 10, 5, 0, 6, 11, 7, 0}));
  const Array bytes = decoded(bytes_array(DType::kUInt8, {1, 2}, {0xF1, 0x2E}),
                              {.code = Code::kSigned, .bits = 4, .first_dimension = true}, {2, 2});
  EXPECT_EQ(floats_of(bytes), (Floats{1, -2, -1, 2}));
}

TEST(Decode, the_elements_of_a_row_may_have_two_dimensions) {
  const Array bytes = bytes_array(DType::kUInt8, {2, 2, 1}, {0x10, 0x32, 0x54, 0x76});
  EXPECT_EQ(floats_of(decoded(bytes, {.code = Code::kUnsigned, .bits = 4}, {2, 4})),
            (Floats{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Decode, numbers_may_lie_in_another_order) {
  Packing packing{.code = Code::kUnsigned, .bits = 4};
  packing.order = {0, 4, 1, 5, 2, 6, 3, 7};
  const Array words = bytes_array(DType::kInt32, {1, 1}, {0x10, 0x32, 0x54, 0x76});
  EXPECT_EQ(floats_of(decoded(words, packing, {1, 8})), (Floats{0, 4, 1, 5, 2, 6, 3, 7}));
}

TEST(Decode, a_number_may_be_added_to_whole_words) {
  // 1 to each number: where one was 15, the next gets the carry.
  const Array words = bytes_array(DType::kInt32, {1, 1}, {0x7F, 0x07, 0, 0});
  const Array numbers =
      decoded(words, {.code = Code::kUnsigned, .bits = 4, .plus = 0x11111111}, {1, 8});
  EXPECT_EQ(floats_of(numbers), (Floats{0, 9, 8, 1, 1, 1, 1, 1}));
}

TEST(Decode, a_table_says_what_codes_mean) {
  Packing packing{.code = Code::kTable, .bits = 4, .order = {1, 0}, .table = {}};
  for (int i = 0; i < 16; ++i) packing.table.push_back(static_cast<float>(i) / 2);
  const Array bytes = bytes_array(DType::kUInt8, {2}, {0x1F, 0x20});
  EXPECT_EQ(floats_of(decoded(bytes, packing, {3})), (Floats{0.5, 7.5, 1}));
}

TEST(Decode, exponents_are_powers_of_two) {
  const Array powers = powers_of_two(bytes_array(DType::kUInt8, {3}, {127, 0, 254}));
  EXPECT_EQ(floats_of(powers), (Floats{1, std::ldexp(1.0F, -127), std::ldexp(1.0F, 127)}));
  const Array nan = powers_of_two(bytes_array(DType::kUInt8, {2}, {1, 255}));
  expect_error(ErrorCode::kUnsupported, "memory: 'w': element [1] is 255", [&] { bytes_of(nan); });
}

}  // namespace
}  // namespace fsdp::formats::arrays
