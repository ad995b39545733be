// SPDX-License-Identifier: Apache-2.0

#include <string_view>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"

namespace fsdp::formats {
namespace {

std::uint32_t crc_of(std::string_view text) {
  return crc32(0, std::as_bytes(std::span(text)));
}

// The check value of CRC-32 for "123456789".
constexpr std::uint32_t kCheck = 0xCBF43926;

TEST(CrcLedger, parts_in_any_order_give_the_crc_of_the_whole) {
  CrcLedger ledger;
  ledger.add(7, 2, crc_of("89"));
  ledger.add(0, 4, crc_of("1234"));
  ledger.add(4, 3, crc_of("567"));
  EXPECT_EQ(ledger.total(9), kCheck);
}

TEST(CrcLedger, the_same_part_twice_counts_once) {
  CrcLedger ledger;
  ledger.add(0, 4, crc_of("1234"));
  ledger.add(4, 5, crc_of("56789"));
  ledger.add(0, 4, crc_of("1234"));
  EXPECT_EQ(ledger.total(9), kCheck);
}

TEST(CrcLedger, a_gap_an_overlap_or_a_missing_end_gives_nothing) {
  CrcLedger gap;
  gap.add(0, 4, 1);
  gap.add(5, 4, 2);
  EXPECT_FALSE(gap.total(9));
  CrcLedger overlap;
  overlap.add(0, 5, 1);
  overlap.add(4, 5, 2);
  EXPECT_FALSE(overlap.total(9));
  CrcLedger end;
  end.add(0, 8, 1);
  EXPECT_FALSE(end.total(9));
}

TEST(CrcLedger, nothing_has_the_crc_of_nothing) {
  EXPECT_EQ(CrcLedger().total(0), 0U);
}

}  // namespace
}  // namespace fsdp::formats
