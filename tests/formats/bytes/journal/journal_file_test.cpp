// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/journal/journal_file.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class JournalFile : public testing::Test {
 protected:
  FileDescriptor open(int flags) const {
    return FileDescriptor(::open(path_.c_str(), flags | O_CREAT | O_CLOEXEC, 0600));
  }
  void append(std::string_view bytes) const {
    append_record(open(O_WRONLY | O_APPEND), bytes, "j");
  }
  JournalRecords read() const { return read_journal(open(O_RDONLY), "j"); }
  std::string damage() const {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  test::TempDir dir_;
  std::filesystem::path path_ = dir_ / "journal";
};

TEST_F(JournalFile, returns_what_was_appended) {
  EXPECT_EQ(read().records.size(), 0U);
  append("one");
  append("");
  append(std::string("\0three", 6));
  EXPECT_THAT(read().records, ElementsAre("one", "", std::string("\0three", 6)));
  EXPECT_EQ(read().sound_bytes, bytes().size());
}

TEST_F(JournalFile, a_record_that_ends_early_at_any_byte_is_torn) {
  append("the first");
  const std::string first = bytes();
  append("the second");
  const std::string both = bytes();
  for (std::size_t size = first.size(); size < both.size(); ++size) {
    put(both.substr(0, size));
    EXPECT_THAT(read().records, ElementsAre("the first")) << size;
    EXPECT_EQ(read().sound_bytes, first.size());
  }
  // The file grew, and its last blocks did not reach the disk.
  put(first + std::string(100, '\0'));
  EXPECT_THAT(read().records, ElementsAre("the first"));
  put(both.substr(0, both.size() - 3) + std::string(3, '\0'));
  EXPECT_THAT(read().records, ElementsAre("the first"));
}

TEST_F(JournalFile, a_changed_bit_before_the_last_record_is_damage) {
  append("the first");
  append("the second");
  const std::string sound = bytes();
  for (std::size_t at = 0; at < 16 + 9; ++at) {
    std::string changed = sound;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    put(changed);
    EXPECT_THAT(damage(), HasSubstr("j: the journal is damaged: ")) << at;
  }
  put(sound);
  EXPECT_EQ(damage(), "none");
}

TEST_F(JournalFile, one_too_large_to_be_read_is_damage) {
  append("the first");
  std::filesystem::resize_file(path_, std::uintmax_t{1} << 42U);  // has no blocks for it
  EXPECT_EQ(damage(),
            "j: the journal is damaged: it has 4398046511104 bytes, at most 1073741824 are "
            "expected");
}

}  // namespace
}  // namespace fsdp::formats
