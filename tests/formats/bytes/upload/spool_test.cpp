// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/spool.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <utime.h>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

class SpoolTest : public testing::Test {
 protected:
  SpoolTest() { ::setenv("TMPDIR", folder_.path().c_str(), 1); }
  ~SpoolTest() override { ::unsetenv("TMPDIR"); }
  bool empty() const { return fs::is_empty(folder_.path()); }
  test::TempDir folder_;
};

TEST_F(SpoolTest, its_files_go_with_it_and_nobody_else_may_look) {
  {
    Spool spool;
    EXPECT_TRUE(fs::is_regular_file(spool.add("output")));
    EXPECT_TRUE(fs::is_regular_file(spool.add("folder/a")));
    EXPECT_TRUE(fs::is_regular_file(spool.add("folder/b")));
    EXPECT_EQ(fs::status(spool.path()).permissions(), fs::perms::owner_all);
    test::expect_error(ErrorCode::kIo, "File exists", [&] { spool.add("output"); });
  }
  EXPECT_TRUE(empty());
}

TEST_F(SpoolTest, folders_of_killed_processes_are_removed_and_those_of_others_stay) {
  const fs::path old = folder_ / "fsdp-ckpt-upload-old";
  fs::create_directory(old);
  test::write_file(old / "output", "left");
  const utimbuf before{1, 1};
  ASSERT_EQ(::utime(old.c_str(), &before), 0);
  fs::create_directory(folder_ / "fsdp-ckpt-upload-new");  // about to be locked
  fs::create_directory(folder_ / "another");
  Spool first;
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(folder_ / "fsdp-ckpt-upload-new"));
  EXPECT_TRUE(fs::exists(folder_ / "another"));
  ASSERT_EQ(::utime(first.path().c_str(), &before), 0);
  Spool second;
  EXPECT_TRUE(fs::exists(first.path()));
}

TEST_F(SpoolTest, a_folder_that_is_missing_is_named) {
  ::setenv("TMPDIR", (folder_ / "none").c_str(), 1);
  test::expect_error(ErrorCode::kIo, "/none/fsdp-ckpt-upload-", [] { Spool spool; });
}

}  // namespace
}  // namespace fsdp::formats
