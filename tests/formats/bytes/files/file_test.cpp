// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/files/local_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using test::TempDir;
using test::to_text;
using test::write_file;
using ::testing::ElementsAre;
namespace fs = std::filesystem;

std::string content_of(const File& file) {
  return to_text(read_bytes(file, 0, file.size()));
}

TEST(File, reads_ranges_of_a_regular_file) {
  const TempDir dir;
  write_file(dir / "a.bin", "0123456789");
  const auto file = file_at(dir / "a.bin");
  EXPECT_EQ(file->size(), 10U);
  EXPECT_EQ(to_text(read_bytes(*file, 3, 4)), "3456");
  EXPECT_EQ(to_text(read_bytes(*file, 10, 0)), "");
  EXPECT_EQ(file->name(), (dir / "a.bin").string());
  std::vector<std::byte> out(2);
  expect_error(ErrorCode::kTruncated, "a.bin: 2 bytes at byte 9 are needed, but the file has 10",
               [&] { file->read_at(9, out); });
}

TEST(File, only_regular_files_are_opened) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_error(ErrorCode::kNotFound, "absent: No such file or directory",
               [&] { file_at(dir / "absent"); });
  expect_error(ErrorCode::kNotRegular, "is a folder, expected a regular file",
               [&] { file_at(dir.path()); });
  expect_error(ErrorCode::kNotRegular, "pipe: is a pipe", [&] { file_at(dir / "pipe"); });
  expect_error(ErrorCode::kNotRegular, "is a device", [] { file_at("/dev/null"); });
}

TEST(File, names_are_escaped_in_messages) {
  const TempDir dir;
  expect_error(ErrorCode::kNotFound, "\\x1b[31m: No such file", [&] { file_at(dir / "\x1B[31m"); });
}

TEST(File, a_file_cut_while_it_is_read_is_an_error) {
  const TempDir dir;
  write_file(dir / "a.bin", "0123456789");
  const auto file = file_at(dir / "a.bin");
  fs::resize_file(dir / "a.bin", 4);
  expect_error(ErrorCode::kChanged, "ends at byte 4, but had 10 bytes when it was opened",
               [&] { read_bytes(*file, 0, 10); });
  expect_error(ErrorCode::kChanged, "was written to while it was being read",
               [&] { file->check_unchanged(); });
}

TEST(File, a_rewrite_of_the_same_size_is_noticed) {
  const TempDir dir;
  write_file(dir / "a.bin", "0123456789");
  const auto file = file_at(dir / "a.bin");
  file->check_unchanged();
  fs::last_write_time(dir / "a.bin", fs::last_write_time(dir / "a.bin") + std::chrono::seconds(1));
  expect_error(ErrorCode::kChanged, "was written to while it was being read",
               [&] { file->check_unchanged(); });
}

TEST(Folder, members_are_opened_by_relative_path) {
  const TempDir dir;
  fs::create_directory(dir / "sub");
  write_file(dir / "sub/a.bin", "inner");
  write_file(dir / "b.bin", "outer");
  fs::create_symlink("b.bin", dir / "link");
  const auto folder = folder_at(dir.path());
  EXPECT_EQ(content_of(*folder->open_member("sub/a.bin")), "inner");
  EXPECT_EQ(content_of(*folder->open_member("link")), "outer") << "a link that stays inside";
  EXPECT_EQ(content_of(*folder->open_member("sub/../b.bin")), "outer");
  EXPECT_EQ(folder->open_member("b.bin")->name(), (dir / "b.bin").string());
}

TEST(Folder, paths_that_lead_outside_are_refused) {
  const TempDir dir;
  fs::create_directory(dir / "ckpt");
  write_file(dir / "secret", "secret");
  fs::create_symlink("../secret", dir / "ckpt/relative");
  fs::create_symlink(dir / "secret", dir / "ckpt/absolute");
  fs::create_directory_symlink("..", dir / "ckpt/up");
  const auto folder = folder_at(dir / "ckpt");
  for (const std::string& path :
       {std::string("../secret"), (dir / "secret").string(), std::string("relative"),
        std::string("absolute"), std::string("up/secret"), std::string("..")}) {
    SCOPED_TRACE(path);
    expect_error(ErrorCode::kPathEscape, "leads outside the folder",
                 [&] { folder->open_member(path); });
  }
}

TEST(Folder, paths_that_name_no_file_are_refused) {
  const TempDir dir;
  fs::create_directory(dir / "sub");
  fs::create_symlink("loop", dir / "loop");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const auto folder = folder_at(dir.path());
  const auto open = [&](const std::string& path) {
    return [&, path] { folder->open_member(path); };
  };
  expect_error(ErrorCode::kPath, "path '' does not name a file", open(""));
  expect_error(ErrorCode::kPath, "path '.' does not name a file", open("."));
  expect_error(ErrorCode::kPath, "contains a NUL byte", open(std::string("a\0b", 3)));
  expect_error(ErrorCode::kPath, "is 10240 bytes long, at most 4095",
               open(std::string(10240, 'x')));
  expect_error(ErrorCode::kPath, "is too long for this file system", open(std::string(300, 'x')));
  expect_error(ErrorCode::kPath, "is a loop of links", open("loop"));
  expect_error(ErrorCode::kPath, "is a folder", open("sub"));
  expect_error(ErrorCode::kNotRegular, "is a pipe", open("pipe"));
}

TEST(Folder, absent_members_are_told_apart_from_unreadable_ones) {
  const TempDir dir;
  const auto folder = folder_at(dir.path());
  EXPECT_EQ(folder->open_member_if_present("absent"), nullptr);
  EXPECT_EQ(folder->open_member_if_present("absent/deeper"), nullptr);
  expect_error(ErrorCode::kShardMissing, "absent: no such file",
               [&] { folder->open_member("absent"); });
}

TEST(Folder, lists_its_members_in_natural_order) {
  const TempDir dir;
  for (const std::string name : {"__10_0.distcp", "__9_0.distcp", ".metadata", "sub"}) {
    write_file(dir / name, "");
  }
  fs::create_directory(dir / "folder");
  const auto folder = folder_at(dir.path());
  EXPECT_THAT(folder->list(),
              ElementsAre(".metadata", "__9_0.distcp", "__10_0.distcp", "folder", "sub"));
  EXPECT_EQ(folder->list().size(), 5U) << "a second time";
  EXPECT_TRUE(folder->is_folder("folder"));
  EXPECT_FALSE(folder->is_folder("sub"));
  EXPECT_FALSE(folder->is_folder("absent"));
}

TEST(Folder, must_be_a_folder) {
  const TempDir dir;
  write_file(dir / "file", "");
  expect_error(ErrorCode::kNotFound, "absent: No such file", [&] { folder_at(dir / "absent"); });
  expect_error(ErrorCode::kNotFound, "file: Not a directory", [&] { folder_at(dir / "file"); });
}

TEST(Folder, stays_the_same_folder_when_it_is_renamed) {
  const TempDir dir;
  fs::create_directory(dir / "a");
  write_file(dir / "a/x", "first");
  const auto folder = folder_at(dir / "a");
  fs::rename(dir / "a", dir / "b");
  fs::create_directory(dir / "a");
  write_file(dir / "a/x", "second");
  EXPECT_EQ(content_of(*folder->open_member("x")), "first");
}

TEST(SpillFile, gives_back_what_was_appended) {
  SpillFile spill;
  EXPECT_EQ(spill.size(), 0U);
  spill.append(test::to_bytes("abc"));
  spill.append({});
  spill.append(test::to_bytes("defg"));
  EXPECT_EQ(spill.size(), 7U);
  EXPECT_EQ(to_text(read_bytes(spill, 2, 4)), "cdef");
  expect_error(ErrorCode::kTruncated, "there are only 7", [&] { read_bytes(spill, 2, 6); });
}

TEST(SpillFile, leaves_no_name_in_its_folder) {
  const TempDir dir;
  ASSERT_EQ(::setenv("TMPDIR", dir.path().c_str(), 1), 0);
  {
    SpillFile spill;
    spill.append(test::to_bytes("abc"));
    EXPECT_TRUE(fs::is_empty(dir.path()));
  }
  ASSERT_EQ(::setenv("TMPDIR", (dir / "absent").c_str(), 1), 0);
  EXPECT_THROW(SpillFile(), Error);
  ASSERT_EQ(::unsetenv("TMPDIR"), 0);
}

TEST(FileDescriptor, is_closed_once_with_its_owner) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    FileDescriptor first(raw);
    FileDescriptor second(std::move(first));
    EXPECT_EQ(second.get(), raw);
    FileDescriptor third;
    third = std::move(second);
    EXPECT_EQ(third.get(), raw);
    EXPECT_EQ(::fcntl(raw, F_GETFD) >= 0, true);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
}

TEST(ThrowErrno, tells_the_kinds_of_trouble_apart) {
  const std::vector<std::pair<int, ErrorCode>> cases = {
      {ENOENT, ErrorCode::kNotFound}, {ENOTDIR, ErrorCode::kNotFound},
      {ENOSPC, ErrorCode::kNoSpace},  {EDQUOT, ErrorCode::kNoSpace},
      {EFBIG, ErrorCode::kNoSpace},   {ENOMEM, ErrorCode::kOutOfMemory},
      {EACCES, ErrorCode::kIo},       {EIO, ErrorCode::kIo}};
  for (const auto& [number, code] : cases) {
    expect_error(code, "a.pt: ", [&, value = number] {
      errno = value;
      throw_errno("a.pt");
    });
  }
}

}  // namespace
}  // namespace fsdp::formats
