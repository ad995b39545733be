// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/partial_reads.h"

#include <span>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"

namespace fsdp::formats {
namespace {

// The check value of CRC-32 for "123456789".
constexpr std::uint32_t kCheck = 0xCBF43926;

PartialRead read_of(std::uint64_t begin, std::string_view text, std::uint32_t crc = kCheck) {
  PartialRead read;
  read.file = "dir/a b.pt";
  read.key = "w 1";
  read.file_offset = 64;
  read.storage_bytes = 9;
  read.crc = crc;
  read.ledger.add(begin, text.size(), crc32(0, std::as_bytes(std::span(text))));
  return read;
}

TEST(PartialReads, parts_of_several_readers_are_compared_as_one) {
  const std::vector<std::vector<PartialRead>> readers = {
      {read_of(0, "1234")}, {read_of(4, "56")}, {read_of(6, "789"), read_of(0, "1234")}};
  EXPECT_EQ(check_together(readers), 0U);
}

TEST(PartialReads, a_storage_that_is_not_what_it_was_is_named) {
  const std::vector<std::vector<PartialRead>> readers = {{read_of(0, "12x4")},
                                                         {read_of(4, "56789")}};
  try {
    check_together(readers);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kZipCrc);
    EXPECT_THAT(error.what(),
                ::testing::StartsWith(
                    "dir/a b.pt: 'w 1': data at byte 64: CRC-32 stored cbf43926, computed "));
  }
}

TEST(PartialReads, what_nobody_read_is_counted) {
  const std::vector<std::vector<PartialRead>> readers = {{read_of(0, "12x4")},
                                                         {read_of(5, "6789")}};
  EXPECT_EQ(check_together(readers), 9U);
}

TEST(PartialReads, go_through_text_as_they_are) {
  const std::vector<PartialRead> reads = {read_of(0, "1234"), read_of(4, "56789", 7)};
  const auto back = partial_reads_from(text_of(reads));
  ASSERT_EQ(back.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back[i].file, reads[i].file);
    EXPECT_EQ(back[i].key, reads[i].key);
    EXPECT_EQ(back[i].file_offset, reads[i].file_offset);
    EXPECT_EQ(back[i].storage_bytes, reads[i].storage_bytes);
    EXPECT_EQ(back[i].crc, reads[i].crc);
    EXPECT_EQ(back[i].mismatch, reads[i].mismatch);
    ASSERT_EQ(back[i].ledger.runs().size(), 1U);
    EXPECT_EQ(back[i].ledger.runs()[0].crc, reads[i].ledger.runs()[0].crc);
  }
  for (const char* text : {"", "1", "1 3 a", "x", "1 4 file 1 k 0 0 0"})
    EXPECT_THROW(partial_reads_from(text), Error) << text;
}

TEST(PartialReads, are_not_taken_from_a_text_that_no_reader_writes) {
  const std::string code = std::to_string(static_cast<int>(ErrorCode::kZipCrc));
  const std::string head = "1 4 file 1 k 0 9 7 ";
  EXPECT_EQ(partial_reads_from(head + code + " 1 4 5 3 ").size(), 1U);
  for (const std::string& text : {
           "1 99999999999999999 file 1 k 0 9 7 " + code + " 0 ",    // a name longer than the text
           "1 4 file 1 k 0 9223372036854775808 7 " + code + " 0 ",  // a storage of 8 EiB
           head + "100000 0 ",                                      // a code of no error
           head + "0 0 ",                                           // of no checksum
           head + code + " 1 4 6 3 ",                               // a part past the storage's end
           head + code + " 1 10 0 3 ",                              // one behind it
           head + code + " 1 4 18446744073709551615 3 ",
       }) {
    EXPECT_THROW(partial_reads_from(text), Error) << text;
  }
}

}  // namespace
}  // namespace fsdp::formats
