// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;
using fsdp::test::TempDir;
using fsdp::test::write_file;

TEST(NoAnswer, what_could_not_be_read_says_nothing_and_what_the_bytes_say_does) {
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kOutOfMemory, ErrorCode::kChanged,
                               ErrorCode::kInterrupted, ErrorCode::kH5ReaderFailed}) {
    EXPECT_TRUE(is_no_answer(code)) << code_name(code);
  }
  for (const ErrorCode code : {ErrorCode::kZipCrc, ErrorCode::kTruncated, ErrorCode::kShardMissing,
                               ErrorCode::kLimitRatio, ErrorCode::kH5Open}) {
    EXPECT_FALSE(is_no_answer(code)) << code_name(code);
  }
}

TEST(NoAnswer, what_stands_somewhere_exists_and_a_link_does_whatever_it_leads_to) {
  TempDir dir;
  write_file(dir / "file", "x");
  ASSERT_EQ(::symlink("nowhere", (dir / "link").c_str()), 0);
  EXPECT_TRUE(exists_at(dir / "file"));
  EXPECT_TRUE(exists_at(dir / "link"));
  EXPECT_FALSE(exists_at(dir / "other"));
  EXPECT_FALSE(exists_at(dir / "file" / "below"));
  EXPECT_FALSE(exists_at(dir / std::string(300, 'n')));
}

TEST(NoAnswer, where_nobody_can_tell_that_is_an_error) {
  TempDir dir;
  ASSERT_EQ(::symlink("loop", (dir / "loop").c_str()), 0);
  expect_error(ErrorCode::kIo, "loop/below: Too many levels",
               [&] { (void)exists_at(dir / "loop" / "below"); });
}

}  // namespace
}  // namespace fsdp::formats
