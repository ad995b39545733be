// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/team.h"
#include "formats/bytes/journal/journal_file.h"

namespace fsdp::formats {
namespace {

using testing::HasSubstr;

JournalEntry entry(std::string file, std::uint64_t offset) {
  JournalEntry entry;
  entry.runs = {{file, offset, 5, 7}, {"other", offset, 6, UINT32_MAX}, {file, offset + 5, 1, 0}};
  entry.unchecked_bytes = 3;
  entry.reads = std::string("\0 reads", 7);
  return entry;
}

std::string refusal(std::string_view record) {
  try {
    entries_of(record);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(JournalEntry, goes_through_a_record_as_it_is) {
  const std::vector<JournalEntry> entries = {entry("a\nb", 0), {}, entry("", UINT64_MAX)};
  const std::vector<JournalEntry> back = entries_of(record_of(entries));
  ASSERT_EQ(back.size(), entries.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].unchecked_bytes, entries[i].unchecked_bytes);
    EXPECT_EQ(back[i].reads, entries[i].reads);
    ASSERT_EQ(back[i].runs.size(), entries[i].runs.size());
    for (std::size_t r = 0; r < back[i].runs.size(); ++r) {
      EXPECT_EQ(back[i].runs[r].file, entries[i].runs[r].file);
      EXPECT_EQ(back[i].runs[r].offset, entries[i].runs[r].offset);
      EXPECT_EQ(back[i].runs[r].bytes, entries[i].runs[r].bytes);
      EXPECT_EQ(back[i].runs[r].crc, entries[i].runs[r].crc);
    }
  }
  EXPECT_TRUE(entries_of("").empty());
}

TEST(JournalEntry, a_record_that_ends_early_at_any_byte_is_refused) {
  const std::vector<JournalEntry> one = {entry("file", 8)};
  const std::string whole = record_of(one);
  for (std::size_t size = 1; size < whole.size(); ++size)
    EXPECT_NE(refusal(whole.substr(0, size)), "none") << size;
}

TEST(JournalEntry, what_no_run_writes_is_refused) {
  const auto record = [](std::uint64_t runs, std::uint64_t name, const std::string& text) {
    Packed packed;
    packed.number(0).text("").number(runs).number(1).text(text);
    return packed.number(name).number(0).number(1).number(2).take();
  };
  EXPECT_EQ(refusal(record(1, 0, "name")), "none");
  EXPECT_EQ(refusal(record(1, 1, "name")), "a run without a file");
  EXPECT_EQ(refusal(record(1, 0, std::string(5000, 'x'))), "a name of 5000 bytes");
  // Numbers of names and runs are not believed, but counted out.
  EXPECT_THAT(refusal(record(UINT64_MAX, 0, "name")), HasSubstr("ends early"));
  EXPECT_THAT(refusal(Packed().number(0).text("").number(0).number(UINT64_MAX).take()),
              HasSubstr("ends early"));
}

}  // namespace
}  // namespace fsdp::formats
