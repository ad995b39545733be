// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/new_folders.h"

#include <gtest/gtest.h>

#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/output_checks.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using fsdp::test::expect_error;
using fsdp::test::names;
using fsdp::test::TempDir;
using fsdp::test::to_bytes;
using fsdp::test::write_file;

const OutputOptions kMake{.make_folders = true};

TEST(NewFolders, are_removed_unless_kept) {
  TempDir dir;
  {
    const NewFolders folders(dir / "a/b/c/x.pt");
    EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
  }
  EXPECT_TRUE(names(dir.path()).empty());
  {
    NewFolders folders(dir / "a/b/out/");
    EXPECT_TRUE(fs::is_directory(dir / "a/b"));
    EXPECT_FALSE(fs::exists(dir / "a/b/out"));
    folders.sync();
    folders.keep();
  }
  EXPECT_TRUE(fs::is_directory(dir / "a/b"));
}

TEST(NewFolders, those_that_were_there_or_hold_something_stay) {
  TempDir dir;
  fs::create_directory(dir / "old");
  {
    const NewFolders folders(dir / "old/new/x.pt");
    write_file(dir / "old/new/note", "of somebody else");
  }
  EXPECT_TRUE(fs::exists(dir / "old/new/note"));
  { const NewFolders none(dir / "old/x.pt"); }
  EXPECT_TRUE(fs::exists(dir / "old"));
}

TEST(NewFolders, a_file_in_the_way_is_an_error_that_leaves_nothing) {
  TempDir dir;
  write_file(dir / "file", "x");
  EXPECT_THROW(NewFolders(dir / "file/b/x.pt"), Error);
  const std::string longest(300, 'n');
  EXPECT_THROW(NewFolders(dir / "a/b" / longest / "x.pt"), Error);
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"file"});
}

TEST(NewFolders, an_output_makes_them_and_a_failed_one_leaves_none) {
  TempDir dir;
  {
    const auto failed = new_file(dir / "a/b/x.pt", kMake);
    const auto other = new_folder(dir / "c/d/out", kMake);
    other->add_file("f").write_at(0, to_bytes("x"));
  }
  EXPECT_TRUE(names(dir.path()).empty());
  const auto file = new_file(dir / "a/b/x.pt", kMake);
  file->commit();
  const auto folder = new_folder(dir / "c/d/out", kMake);
  folder->commit();
  EXPECT_EQ(names(dir / "a/b"), std::set<std::string>{"x.pt"});
  EXPECT_EQ(names(dir / "c/d"), std::set<std::string>{"out"});
}

TEST(NewFolders, a_destination_that_is_refused_leaves_none) {
  TempDir dir;
  expect_error(ErrorCode::kUsage, "does not name a file", [&] { new_file(dir / "a/b/..", kMake); });
  const std::string longest(255, 'n');  // its temporary is longer than a name may be
  EXPECT_THROW(new_file(dir / "a" / longest, kMake), Error);
  EXPECT_TRUE(names(dir.path()).empty());
}

TEST(NewFolders, without_being_asked_for_are_not_made) {
  TempDir dir;
  expect_error(ErrorCode::kNotFound, "a/b", [&] { new_file(dir / "a/b/x.pt", {}); });
  EXPECT_TRUE(names(dir.path()).empty());
}

TEST(NewFolders, the_innermost_folder_above_that_exists_is_found) {
  TempDir dir;
  EXPECT_EQ(existing_folder_above(dir / "x.pt"), dir.path());
  EXPECT_EQ(existing_folder_above(dir / "a/b/x.pt"), dir.path());
  EXPECT_EQ(existing_folder_above("/no-such-folder/b/x.pt"), fs::path("/"));
}

TEST(FreeBytes, names_a_folder_that_is_not_there) {
  EXPECT_GT(free_bytes("/"), 0u);
  expect_error(ErrorCode::kNotFound, "/no/such/folder: No such file",
               [] { free_bytes("/no/such/folder"); });
}

}  // namespace
}  // namespace fsdp::formats
