// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/pack.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/changes/arrays/decode.h"
#include "tests/formats/changes/arrays/byte_operand.h"

namespace fsdp::formats::arrays {
namespace {

std::vector<int> ints_of(const Array& array) {
  std::vector<int> out;
  for (const std::byte byte : bytes_of(array)) out.push_back(std::to_integer<int>(byte));
  return out;
}

TEST(Pack, two_numbers_of_a_row_share_a_byte) {
  const Array codes = bytes_array(DType::kUInt8, {2, 3}, {1, 2, 3, 4, 5, 0xF6});
  const Array bytes = packed(codes, 4, DType::kUInt8);
  EXPECT_EQ(bytes.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(ints_of(bytes), (std::vector<int>{0x21, 0x03, 0x54, 0x06}));
}

TEST(Pack, two_rows_share_a_byte) {
  const Array codes = bytes_array(DType::kInt8, {2, 3}, {1, 2, 3, 0xFF, 5, 6});
  const Array bytes = packed(codes, 4, DType::kUInt8, true);
  EXPECT_EQ(bytes.shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(ints_of(bytes), (std::vector<int>{0xF1, 0x52, 0x63}));
}

TEST(Pack, a_last_word_of_rows_is_filled_with_zeros) {
  const Array codes = bytes_array(DType::kUInt8, {3, 1}, {1, 2, 3});
  const Array words = packed(codes, 4, DType::kInt32, true);
  EXPECT_EQ(words.shape, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(ints_of(words), (std::vector<int>{0x21, 0x03, 0, 0}));
}

// Any number of bits, any size, any part: what is packed is decoded again.
TEST(Pack, decode_undoes_it) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const unsigned bits = 1 + random() % 8;
    const std::int64_t rows = 1 + random() % 5;
    const std::int64_t columns = 1 + random() % 70;
    std::vector<int> codes(static_cast<std::size_t>(rows * columns));
    for (int& code : codes) code = static_cast<int>(random() % (1U << bits));
    const Array words =
        packed(bytes_array(DType::kUInt8, {rows, columns}, codes), bits, DType::kInt32);
    const Array back = decoded(words, {.code = Code::kUnsigned, .bits = bits}, {rows, columns});
    EXPECT_EQ(floats_of(back), std::vector<float>(codes.begin(), codes.end())) << bits;
    // A part of the words, from any of them on.
    const std::size_t count = numel_of(words);
    const std::size_t first = random() % count;
    std::vector<std::byte> part((count - first) * sizeof(std::int32_t));
    ArrayReader(words).read(first, part);
    const std::vector<std::byte> all = bytes_of(words);
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), all.end() - static_cast<std::ptrdiff_t>(part.size())));
  }
}

}  // namespace
}  // namespace fsdp::formats::arrays
