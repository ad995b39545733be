// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/file_link.h"

#include <sys/stat.h>

#include <gtest/gtest.h>

#include "formats/bytes/outputs/atomic_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using test::read_file;
using test::TempDir;
using test::to_bytes;
using test::write_file;

struct stat stat_of(const std::filesystem::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info;
}

// More than one buffer, and not a multiple of it.
std::string long_text() {
  std::string text;
  while (text.size() < (9U << 20U)) text += "0123456789" + std::to_string(text.size());
  return text;
}

TEST(LinkFile, shares_the_inode_on_one_file_system) {
  TempDir dir;
  if (may_reflink(dir.path())) GTEST_SKIP() << "this file system may have reflinks";
  write_file(dir / "a", "content");
  const auto source = file_at(dir / "a");
  EXPECT_TRUE(on_one_file_system(*source, dir.path()));
  const auto folder = new_folder(dir / "out", {});
  EXPECT_EQ(folder->link_file("b.distcp", *source), Sharing::kHardLink);
  EXPECT_EQ(folder->link_file("sub/c.distcp", *source), Sharing::kHardLink);
  expect_error(ErrorCode::kExists, "out/b.distcp: is written twice",
               [&] { folder->link_file("b.distcp", *source); });
  expect_error(ErrorCode::kExists, "out/b.distcp: is written twice",
               [&] { folder->link_file("b.distcp", *source, {.hard_link = false}); });
  folder->commit();
  EXPECT_EQ(stat_of(dir / "out/b.distcp").st_ino, stat_of(dir / "a").st_ino);
  EXPECT_EQ(stat_of(dir / "out/sub/c.distcp").st_ino, stat_of(dir / "a").st_ino);
}

TEST(LinkFile, links_the_file_that_is_open_whatever_its_name_stands_for) {
  TempDir dir;
  write_file(dir / "a", "old");
  const auto source = file_at(dir / "a");
  std::filesystem::rename(dir / "a", dir / "moved");
  write_file(dir / "a", "new");
  const auto folder = new_folder(dir / "out", {});
  folder->link_file("b.distcp", *source);
  folder->commit();
  EXPECT_EQ(read_file(dir / "out/b.distcp"), to_bytes("old"));
}

TEST(LinkFile, copies_where_no_link_is_wanted) {
  TempDir dir;
  const std::string text = long_text();
  write_file(dir / "a", text);
  const auto source = file_at(dir / "a");
  std::uint64_t copied = 0;
  SharingOptions options;
  options.hard_link = false;
  options.on_copied = [&](std::uint64_t bytes) { copied += bytes; };
  const auto folder = new_folder(dir / "out", {});
  const Sharing sharing = folder->link_file("b.distcp", *source, options);
  EXPECT_NE(sharing, Sharing::kHardLink);
  folder->commit();
  EXPECT_EQ(read_file(dir / "out/b.distcp"), to_bytes(text));
  EXPECT_NE(stat_of(dir / "out/b.distcp").st_ino, stat_of(dir / "a").st_ino);
  if (sharing == Sharing::kCopy) {
    EXPECT_EQ(copied, text.size());
  }
}

TEST(LinkFile, copies_to_another_file_system) {
  if (stat_of("/dev/shm").st_dev == stat_of(std::filesystem::temp_directory_path()).st_dev)
    GTEST_SKIP() << "/dev/shm is not a separate file system";
  TempDir dir;
  const std::string text = long_text();
  write_file(dir / "a", text);
  const auto source = file_at(dir / "a");
  EXPECT_FALSE(on_one_file_system(*source, "/dev/shm"));
  std::string pattern = "/dev/shm/fsdp-test-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const std::filesystem::path there = pattern;
  {
    const auto folder = new_folder(there / "out", {});
    EXPECT_EQ(folder->link_file("b.distcp", *source), Sharing::kCopy);
    folder->commit();
    EXPECT_EQ(read_file(there / "out/b.distcp"), to_bytes(text));
  }
  std::filesystem::remove_all(there);
}

TEST(LinkFile, a_source_that_got_shorter_is_an_error) {
  TempDir dir;
  write_file(dir / "a", "content");
  const auto source = file_at(dir / "a");
  std::filesystem::resize_file(dir / "a", 3);
  const auto folder = new_folder(dir / "out", {});
  SharingOptions options;
  options.hard_link = false;
  // A reflink would take the present content.
  try {
    EXPECT_EQ(folder->link_file("b.distcp", *source, options), Sharing::kReflink);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kChanged) << e.what();
  }
}

}  // namespace
}  // namespace fsdp::formats
