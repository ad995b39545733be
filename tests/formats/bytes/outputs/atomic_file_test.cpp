// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/bytes/outputs/new_folders.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/output_checks.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::content;
using fsdp::test::expect_error;
using fsdp::test::expect_seals;
using fsdp::test::names;
using fsdp::test::run_and_kill;
using fsdp::test::TempDir;
using fsdp::test::to_bytes;
using fsdp::test::write_file;

TEST(AtomicFile, nothing_shows_until_commit_and_no_temporary_after_it) {
  TempDir dir;
  const auto output = new_file(dir / "x.bin", {});
  output->file().write_at(6, to_bytes("world"));
  output->file().write_at(0, to_bytes("hello "));
  EXPECT_EQ(names(dir.path()), std::set<std::string>{".x.bin.fsdp-tmp"});
  output->commit();
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"x.bin"});
  EXPECT_EQ(content(dir / "x.bin"), "hello world");
}

TEST(AtomicFile, destroyed_before_commit_leaves_nothing) {
  TempDir dir;
  { const auto output = new_file(dir / "x.bin", {}); }
  EXPECT_TRUE(names(dir.path()).empty());
}

TEST(AtomicFile, the_last_look_at_it_names_the_destination_and_not_the_way_there) {
  TempDir dir;
  const auto look = [](const std::filesystem::path& temporary) {
    throw Error(ErrorCode::kIo, temporary.native() + ": reading 8 bytes: Input/output error");
  };
  const auto output = new_file(dir / "x.bin", {.before_commit = look});
  expect_error(ErrorCode::kIo, (dir / "x.bin").native() + ": reading 8 bytes",
               [&] { output->commit(); });
  const auto stat = [](const std::filesystem::path& temporary) {
    throw std::filesystem::filesystem_error("status", temporary,
                                            std::make_error_code(std::errc::io_error));
  };
  const auto other = new_file(dir / "y.bin", {.before_commit = stat});
  expect_error(ErrorCode::kIo, (dir / "y.bin").native() + ": Input/output error",
               [&] { other->commit(); });
}

TEST(AtomicFile, an_existing_destination_is_refused_or_replaced_as_asked) {
  TempDir dir;
  write_file(dir / "x.bin", "old");
  expect_error(ErrorCode::kExists, "x.bin: exists", [&] { new_file(dir / "x.bin", {}); });
  {
    const auto output = new_file(dir / "x.bin", {.replace = true});
    output->file().write_at(0, to_bytes("new"));
    EXPECT_EQ(content(dir / "x.bin"), "old");
    output->commit();
  }
  EXPECT_EQ(content(dir / "x.bin"), "new");
  EXPECT_EQ(names(dir.path()).size(), 1u);
}

TEST(AtomicFile, a_destination_that_appears_meanwhile_is_not_overwritten) {
  TempDir dir;
  {
    const auto output = new_file(dir / "x.bin", {});
    write_file(dir / "x.bin", "someone else's");
    expect_error(ErrorCode::kExists, "appeared while it was being written",
                 [&] { output->commit(); });
  }
  EXPECT_EQ(content(dir / "x.bin"), "someone else's");
  EXPECT_EQ(names(dir.path()).size(), 1u);
}

TEST(AtomicFile, destinations_that_name_no_file_are_refused) {
  TempDir dir;
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("folder", dir / "link");
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  write_file(dir / "file", "");
  const struct {
    std::filesystem::path path;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      {"", ErrorCode::kUsage, "the destination is empty"},
      {".", ErrorCode::kUsage, ".: does not name a file"},
      {"..", ErrorCode::kUsage, "..: does not name a file"},
      {"/", ErrorCode::kUsage, "/: does not name a file"},
      {dir / "x/", ErrorCode::kUsage, "x/: does not name a file"},
      {std::string("a\0b", 3), ErrorCode::kUsage, "a\\x00b: contains a NUL byte"},
      {dir / "absent/x", ErrorCode::kNotFound, "absent/': No such file or directory"},
      {dir / "file/x", ErrorCode::kNotFound, "file/': Not a directory"},
      {dir / "folder", ErrorCode::kNotRegular, "is a folder"},
      {dir / "link", ErrorCode::kNotRegular, "is a symbolic link"},
      {dir / "dangling", ErrorCode::kNotRegular, "is a symbolic link"},
      {dir / "pipe", ErrorCode::kNotRegular, "is not a regular file"},
      {"/dev/null", ErrorCode::kNotRegular, "is not a regular file"},
      {dir / std::string(300, 'n'), ErrorCode::kIo, "File name too long"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.path);
    for (const bool replace : {false, true}) {
      expect_error(c.code, c.fragment, [&] { new_file(c.path, {.replace = replace}); });
    }
  }
  EXPECT_EQ(names(dir.path()),
            (std::set<std::string>{"folder", "link", "dangling", "pipe", "file"}));
}

TEST(AtomicFile, a_relative_destination_goes_where_the_folder_is_even_when_it_is_renamed) {
  TempDir dir;
  std::filesystem::create_directory(dir / "before");
  const std::filesystem::path cwd = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  {
    const auto output = new_file("before/x", {});
    std::filesystem::rename("before", "after");
    output->commit();
    const auto here = new_file("plain", {});
    here->commit();
  }
  std::filesystem::current_path(cwd);
  EXPECT_TRUE(std::filesystem::exists(dir / "after/x"));
  EXPECT_TRUE(std::filesystem::exists(dir / "plain"));
}

TEST(AtomicFile, a_second_writer_is_told_that_it_is_busy) {
  TempDir dir;
  const auto first = new_file(dir / "x", {});
  expect_error(ErrorCode::kBusy, "is being written by another process, which holds '.x.fsdp-tmp'",
               [&] { new_file(dir / "x", {}); });
  const auto other = new_file(dir / "y", {});
  first->commit();
  EXPECT_NO_THROW(new_file(dir / "x", {.replace = true}));
}

TEST(AtomicFile, is_busy_until_the_rename_even_with_its_file_closed) {
  TempDir dir;
  const auto first = new_file(dir / "x", {});
  first->file().finish(true);
  expect_error(ErrorCode::kBusy, "which holds", [&] { new_file(dir / "x", {}); });
  EXPECT_NO_THROW(first->commit());
}

TEST(AtomicFile, of_many_writers_at_once_each_succeeds_or_is_busy_or_too_late) {
  TempDir dir;
  std::atomic<int> committed{0};
  std::atomic<int> unexpected{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        try {
          const auto output = new_file(dir / "x", {.replace = true, .sync = false});
          output->file().write_at(0, to_bytes("whole"));
          output->commit();
          ++committed;
        } catch (const Error& e) {
          if (e.code() != ErrorCode::kBusy) ++unexpected;
        }
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(committed, 0);
  EXPECT_EQ(unexpected, 0);
  EXPECT_EQ(content(dir / "x"), "whole");
  EXPECT_EQ(names(dir.path()).size(), 1u);
}

TEST(AtomicFile, a_killed_writer_leaves_the_destination_and_the_next_one_takes_over) {
  TempDir dir;
  write_file(dir / "x", "old");
  run_and_kill([&] {
    const auto output = new_file(dir / "x", {.replace = true});
    output->file().reserve(1 << 20);
    output->file().write_at(0, to_bytes("half of the new"));
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(content(dir / "x"), "old");
  EXPECT_EQ(names(dir.path()), (std::set<std::string>{"x", ".x.fsdp-tmp"}));
  const auto output = new_file(dir / "x", {.replace = true});
  output->file().write_at(0, to_bytes("new"));
  output->commit();
  EXPECT_EQ(content(dir / "x"), "new");
  EXPECT_EQ(names(dir.path()).size(), 1u);
}

TEST(AtomicFile, what_bears_the_temporary_name_but_is_no_leftover_stays) {
  TempDir dir;
  std::filesystem::create_directory(dir / ".x.fsdp-tmp");
  expect_error(ErrorCode::kNotRegular, "is in the way; remove it",
               [&] { new_file(dir / "x", {}); });
  write_file(dir / "precious", "data");
  std::filesystem::create_symlink("precious", dir / ".y.fsdp-tmp");
  expect_error(ErrorCode::kNotRegular, "is in the way; remove it",
               [&] { new_file(dir / "y", {}); });
  std::filesystem::create_hard_link(dir / "precious", dir / ".z.fsdp-tmp");
  new_file(dir / "z", {})->commit();
  EXPECT_EQ(content(dir / "precious"), "data");
}

TEST(AtomicFile, permissions_are_as_the_umask_gives_even_after_a_leftover) {
  TempDir dir;
  write_file(dir / ".x.fsdp-tmp", "left");
  std::filesystem::permissions(dir / ".x.fsdp-tmp", std::filesystem::perms::owner_all);
  const mode_t before = ::umask(027);
  new_file(dir / "x", {})->commit();
  new_folder(dir / "folder", {})->commit();
  ::umask(before);
  EXPECT_EQ(std::filesystem::status(dir / "x").permissions(), std::filesystem::perms{0640});
  EXPECT_EQ(std::filesystem::status(dir / "folder").permissions(), std::filesystem::perms{0750});
}

TEST(AtomicFile, reserve_makes_the_file_that_long_and_takes_the_space) {
  TempDir dir;
  const auto output = new_file(dir / "x", {});
  output->file().reserve(0);
  output->file().reserve(1 << 20);
  output->file().write_at(5, to_bytes("x"));
  output->commit();
  EXPECT_EQ(std::filesystem::file_size(dir / "x"), std::uintmax_t{1} << 20);
}

TEST(AtomicFile, a_size_beyond_any_file_is_no_space) {
  TempDir dir;
  const auto output = new_file(dir / "x", {});
  expect_error(ErrorCode::kNoSpace, "more than any file can hold",
               [&] { output->file().reserve(UINT64_MAX); });
  expect_error(ErrorCode::kNoSpace, "9223372036854775807 bytes (8.0 EiB) are needed",
               [&] { output->file().reserve(INT64_MAX); });
  expect_error(ErrorCode::kNoSpace, "at byte 18446744073709551615",
               [&] { output->file().write_at(UINT64_MAX, to_bytes("x")); });
}

TEST(AtomicFile, several_threads_write_their_parts) {
  TempDir dir;
  const auto output = new_file(dir / "x", {});
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&output, i] {
        const auto part = to_bytes(std::string(100'000, static_cast<char>('a' + i)));
        output->file().write_at(static_cast<std::uint64_t>(i) * part.size(), part);
      });
    }
  }
  output->commit();
  const std::string text = content(dir / "x");
  ASSERT_EQ(text.size(), 400'000u);
  for (std::size_t i = 0; i < text.size(); ++i)
    ASSERT_EQ(text[i], static_cast<char>('a' + i / 100'000));
}

TEST(AtomicFile, a_limit_on_file_size_is_no_space_and_keeps_the_destination) {
  TempDir dir;
  write_file(dir / "x", "old");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int result = 0;
    for (const bool reserve : {true, false}) {
      try {
        const auto output = new_file(dir / "x", {.replace = true});
        if (reserve) output->file().reserve(5000);
        output->file().write_at(0, to_bytes(std::string(5000, 'n')));
        output->commit();
        result |= 1;
      } catch (const Error& e) {
        if (e.code() != ErrorCode::kNoSpace) result |= 2;
      }
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(dir / "x"), "old");
  EXPECT_EQ(names(dir.path()).size(), 1u);
}

TEST(AtomicFile, a_full_disk_is_an_early_error_that_says_what_is_wanted_and_free) {
  TempDir dir;
  std::filesystem::create_directory(dir / "small");
  if (::mount("tmpfs", (dir / "small").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs root to mount a small tmpfs";
  }
  const auto unmount = [&](void*) { ::umount2((dir / "small").c_str(), MNT_DETACH); };
  int anchor = 0;
  const std::unique_ptr<void, decltype(unmount)> mounted(&anchor, unmount);
  write_file(dir / "small/x", "old");
  {
    const auto output = new_file(dir / "small/x", {.replace = true});
    expect_error(ErrorCode::kNoSpace, "x: 2097152 bytes (2.0 MiB) are needed, 10",
                 [&] { output->file().reserve(2 << 20); });
    expect_error(ErrorCode::kNoSpace, "No space left on device", [&] {
      for (std::uint64_t at = 0;; at += 65536)
        output->file().write_at(at, to_bytes(std::string(65536, 'n')));
    });
  }
  EXPECT_EQ(content(dir / "small/x"), "old");
  EXPECT_EQ(names(dir / "small").size(), 1u);
  EXPECT_LE(free_bytes(dir / "small"), 1u << 20);
}

TEST(AtomicFile, no_output_takes_the_descriptor_of_a_closed_standard_stream) {
  TempDir dir;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (const int fd : {0, 1, 2}) ::close(fd);
    int result = 0;
    try {
      const auto output = new_file(dir / "x", {});
      const auto folder = new_folder(dir / "folder", {});
      folder->add_file("a.json");
      for (const int fd : {0, 1, 2}) {
        if (::write(fd, "stray", 5) >= 0) result = 1;
      }
      output->commit();
      folder->commit();
    } catch (...) {
      result = 2;
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(dir / "x"), "");
}

TEST(AtomicFile, leaves_a_seal_beside_it_and_never_another_file_s) {
  TempDir dir;
  const auto write = [&](const OutputOptions& options, std::string_view text) {
    const auto file = new_file(dir / "a.pt", options);
    file->file().write_at(0, to_bytes(text));
    file->commit();
  };
  write({.seal = true}, "one");
  expect_seals(dir / "a.pt.fsdp_seal.json", dir.path(), {"a.pt"});
  write({.replace = true, .seal = true}, "two");
  expect_seals(dir / "a.pt.fsdp_seal.json", dir.path(), {"a.pt"});
  // A writer that may not replace the file leaves its seal.
  expect_error(ErrorCode::kExists, "exists", [&] { write({.seal = true}, "three"); });
  expect_seals(dir / "a.pt.fsdp_seal.json", dir.path(), {"a.pt"});
  write({.replace = true}, "unsealed");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"a.pt"});
}

TEST(AtomicFile, whose_seal_cannot_be_written_has_none) {
  TempDir dir;
  const auto write = [&](std::string_view text) {
    const auto file = new_file(dir / "a.pt", {.replace = true, .seal = true});
    file->file().write_at(0, to_bytes(text));
    file->commit();
  };
  write("one");
  // The seal's temporary cannot be made.
  std::filesystem::create_directory(dir / ".a.pt.fsdp_seal.json.fsdp-tmp");
  expect_error(ErrorCode::kNotRegular, "a.pt is in place, without a seal", [&] { write("two"); });
  EXPECT_EQ(content(dir / "a.pt"), "two");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.pt.fsdp_seal.json"));
}

TEST(AtomicFile, refuses_a_name_that_leaves_no_room_for_its_seal) {
  TempDir dir;
  const std::string name(235, 'a');
  expect_error(ErrorCode::kUsage, "too long for a seal beside it",
               [&] { new_file(dir / name, {.seal = true}); });
  EXPECT_NO_THROW(new_file(dir / name, {}));
}

}  // namespace
}  // namespace fsdp::formats
