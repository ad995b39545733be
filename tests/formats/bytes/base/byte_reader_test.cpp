// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/byte_reader.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using test::to_bytes;

const std::string kSample("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A\x0B\x0C\x0D\x0E\x0F", 15);

TEST(ByteReader, reads_little_endian_fields_in_file_order) {
  const auto bytes = to_bytes(kSample);
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u8("a"), 0x01);
  EXPECT_EQ(reader.u16("b"), 0x0302);
  EXPECT_EQ(reader.u32("c"), 0x07060504U);
  EXPECT_EQ(reader.offset(), 7U);
  EXPECT_EQ(reader.remaining(), 8U);
  EXPECT_EQ(reader.u64("d"), 0x0F0E0D0C0B0A0908U);
  EXPECT_EQ(reader.remaining(), 0U);
}

TEST(ByteReader, takes_spans_and_text) {
  const auto bytes = to_bytes("abcdef");
  ByteReader reader(bytes);
  EXPECT_EQ(reader.text(3, "name"), "abc");
  reader.skip(1, "gap");
  const auto rest = reader.take(2, "rest");
  EXPECT_EQ(rest.data(), bytes.data() + 4);
  EXPECT_TRUE(reader.take(0, "nothing").empty());
  EXPECT_EQ(reader.text(0, "nothing"), "");
}

TEST(ByteReader, short_read_names_field_position_and_sizes) {
  const auto bytes = to_bytes("abcde");
  ByteReader reader(bytes, 1000);
  reader.skip(4, "magic");
  expect_error(ErrorCode::kTruncated, "cd_offset needs 8 bytes at byte 1004, but only 1 remain",
               [&] { reader.u64("cd_offset"); });
  // A failed read takes nothing.
  EXPECT_EQ(reader.offset(), 1004U);
  reader.skip(1, "last");
  expect_error(ErrorCode::kTruncated, "flag needs 1 byte at byte 1005, but only 0 remain",
               [&] { reader.u8("flag"); });
}

TEST(ByteReader, a_length_near_the_largest_number_is_short_too) {
  const auto bytes = to_bytes("abcde");
  ByteReader reader(bytes);
  reader.skip(1, "magic");
  expect_error(ErrorCode::kTruncated, "name needs 18446744073709551615 bytes at byte 1",
               [&] { reader.text(~std::uint64_t{0}, "name"); });
}

TEST(LoadIntegers, are_little_endian_at_any_position) {
  const auto bytes = to_bytes(std::string("\xFF\xFE\xFD\xFC\xFB\xFA\xF9\xF8\xF7", 9));
  EXPECT_EQ(load_u16(bytes, 1), 0xFDFE);
  EXPECT_EQ(load_u32(bytes, 1), 0xFBFCFDFEU);
  EXPECT_EQ(load_u64(bytes, 1), 0xF7F8F9FAFBFCFDFEU);
}

}  // namespace
}  // namespace fsdp::formats
