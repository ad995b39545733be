// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/atomic_folder.h"

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
#include <thread>
#include <vector>

#include <gtest/gtest.h>

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

void write_folder(const std::filesystem::path& path, const OutputOptions& options,
                  std::string_view text) {
  const auto folder = new_folder(path, options);
  folder->add_file("a.safetensors").write_at(0, to_bytes(text));
  folder->add_file(".metadata").write_at(0, to_bytes(text));
  folder->commit();
}

TEST(AtomicFolder, appears_with_all_its_files_at_once) {
  TempDir dir;
  const auto folder = new_folder(dir / "out/", {});
  folder->add_file("a.safetensors").write_at(0, to_bytes("a"));
  folder->add_file("b.json").write_at(0, to_bytes("b"));
  EXPECT_EQ(names(dir.path()), std::set<std::string>{".out.fsdp-tmp"});
  folder->commit();
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
  EXPECT_EQ(names(dir / "out"), (std::set<std::string>{"a.safetensors", "b.json"}));
}

TEST(AtomicFolder, destroyed_before_commit_leaves_nothing) {
  TempDir dir;
  {
    const auto folder = new_folder(dir / "out", {});
    folder->add_file("a.safetensors");
  }
  EXPECT_TRUE(names(dir.path()).empty());
}

TEST(AtomicFolder, names_of_files_are_plain_and_used_once) {
  TempDir dir;
  const auto folder = new_folder(dir / "out", {});
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b/c/d/e/f/g"),
        std::string("a/"), std::string("a//b"), std::string("a/.."), std::string("a/../b"),
        std::string("../a"), std::string("/etc"), std::string("/etc/x"), std::string("a\0b", 3)}) {
    expect_error(ErrorCode::kPath, "is not the name of a file in a folder",
                 [&] { folder->add_file(name); });
  }
  folder->add_file("a.json");
  expect_error(ErrorCode::kExists, "out/a.json: is written twice",
               [&] { folder->add_file("a.json"); });
}

TEST(AtomicFolder, destinations_that_cannot_be_a_folder_are_refused) {
  TempDir dir;
  write_file(dir / "file", "");
  std::filesystem::create_directory(dir / "real");
  std::filesystem::create_symlink("real", dir / "link");
  const struct {
    std::filesystem::path path;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      {"", ErrorCode::kUsage, "empty"},
      {".", ErrorCode::kUsage, "does not name a folder that could be created"},
      {"..//", ErrorCode::kUsage, "does not name a folder that could be created"},
      {"///", ErrorCode::kUsage, "does not name a folder that could be created"},
      {dir / "absent/out", ErrorCode::kNotFound, "absent/'"},
      {dir / "file", ErrorCode::kNotRegular, "is not a folder"},
      {dir / "link", ErrorCode::kNotRegular, "is a symbolic link"},
      {dir / "link/", ErrorCode::kNotRegular, "is a symbolic link"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.path);
    expect_error(c.code, c.fragment, [&] { new_folder(c.path, {.replace = true}); });
  }
  expect_error(ErrorCode::kExists, "real: exists", [&] { new_folder(dir / "real", {}); });
}

TEST(AtomicFolder, an_old_checkpoint_is_exchanged_for_the_new_one) {
  TempDir dir;
  for (const char* text : {"first", "second", "third"}) {
    write_folder(dir / "out", {.replace = true}, text);
    EXPECT_EQ(content(dir / "out/.metadata"), text);
    EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
  }
}

TEST(AtomicFolder, an_empty_folder_is_replaced) {
  TempDir dir;
  std::filesystem::create_directory(dir / "out");
  write_folder(dir / "out", {.replace = true}, "new");
  EXPECT_EQ(content(dir / "out/.metadata"), "new");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
}

TEST(AtomicFolder, a_folder_with_anything_foreign_in_it_is_refused) {
  const struct {
    const char* name;
    std::function<void(const std::filesystem::path&)> create;
  } kCases[] = {
      {"notes.txt", [](const auto& path) { write_file(path, "mine"); }},
      {"sub.pt", [](const auto& path) { std::filesystem::create_directory(path); }},
      {"link.safetensors",
       [](const auto& path) { std::filesystem::create_symlink("a.safetensors", path); }},
      {".x.fsdp-tmp", [](const auto& path) { write_file(path, "left"); }},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    TempDir dir;
    write_folder(dir / "out", {}, "old");
    c.create(dir.path() / "out" / c.name);
    expect_error(ErrorCode::kExists,
                 "out: holds '" + std::string(c.name) + "', which is not a file of a checkpoint",
                 [&] { new_folder(dir / "out", {.replace = true}); });
    EXPECT_EQ(content(dir / "out/.metadata"), "old");
    EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
  }
}

TEST(AtomicFolder, a_foreign_file_that_appears_meanwhile_keeps_the_old_folder) {
  TempDir dir;
  write_folder(dir / "out", {}, "old");
  {
    const auto folder = new_folder(dir / "out", {.replace = true});
    folder->add_file("a.safetensors");
    write_file(dir / "out/notes.txt", "mine");
    expect_error(ErrorCode::kExists, "'notes.txt'", [&] { folder->commit(); });
  }
  EXPECT_EQ(content(dir / "out/notes.txt"), "mine");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
}

TEST(AtomicFolder, a_destination_that_appears_or_goes_meanwhile_is_seen) {
  TempDir dir;
  {
    const auto folder = new_folder(dir / "out", {});
    std::filesystem::create_directory(dir / "out");
    expect_error(ErrorCode::kExists, "appeared while it was being written",
                 [&] { folder->commit(); });
  }
  const auto folder = new_folder(dir / "out", {.replace = true});
  std::filesystem::remove(dir / "out");
  folder->add_file("a.json");
  folder->commit();
  EXPECT_EQ(names(dir / "out"), std::set<std::string>{"a.json"});
}

TEST(AtomicFolder, a_second_writer_is_busy_and_a_committed_one_is_not) {
  TempDir dir;
  const auto first = new_folder(dir / "out", {});
  expect_error(ErrorCode::kBusy, "which holds '.out.fsdp-tmp'",
               [&] { new_folder(dir / "out/", {}); });
  first->commit();
  EXPECT_NO_THROW(write_folder(dir / "out", {.replace = true}, "new"));
}

TEST(AtomicFolder, a_killed_writer_leaves_the_old_one_and_the_next_takes_over) {
  TempDir dir;
  write_folder(dir / "out", {}, "old");
  run_and_kill([&] {
    const auto folder = new_folder(dir / "out", {.replace = true});
    folder->add_file("a.safetensors").write_at(0, to_bytes("half"));
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(content(dir / "out/.metadata"), "old");
  EXPECT_EQ(names(dir.path()), (std::set<std::string>{"out", ".out.fsdp-tmp"}));
  write_folder(dir / "out", {.replace = true}, "new");
  EXPECT_EQ(content(dir / "out/.metadata"), "new");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
}

TEST(AtomicFolder, a_leftover_with_deep_folders_in_it_is_not_ours_to_remove) {
  TempDir dir;
  std::filesystem::create_directories(dir / ".out.fsdp-tmp/a/b/c/d/e/inner");
  write_file(dir / ".out.fsdp-tmp/a/x", "kept");
  expect_error(ErrorCode::kExists, "holds 'a/b/c/d/e/inner', which is not a regular file",
               [&] { new_folder(dir / "out", {}); });
  EXPECT_EQ(content(dir / ".out.fsdp-tmp/a/x"), "kept");
}

TEST(AtomicFolder, folders_inside_it_may_hold_folders) {
  TempDir dir;
  for (const char* text : {"first", "second"}) {
    const auto folder = new_folder(dir / "out", {.replace = true});
    for (const char* name : {"step/zero/w/fp32.pt", "step/zero/b/fp32.pt", "step/m.pt", "x.json"})
      folder->add_file(name).write_at(0, to_bytes(text));
    folder->commit();
    EXPECT_EQ(content(dir / "out/step/zero/b/fp32.pt"), text);
  }
  write_file(dir / "out/step/zero/w/mine.py", "kept");
  expect_error(ErrorCode::kExists, "which is not a file of a checkpoint",
               [&] { new_folder(dir / "out", {.replace = true}); });
  std::filesystem::remove(dir / "out/step/zero/w/mine.py");
  std::filesystem::create_directories(dir / ".out.fsdp-tmp/step/zero/w");
  write_file(dir / ".out.fsdp-tmp/step/zero/w/left.pt", "left");
  new_folder(dir / "out", {.replace = true})->add_file("only.pt");
  EXPECT_EQ(content(dir / "out/step/m.pt"), "second");
  EXPECT_FALSE(std::filesystem::exists(dir / ".out.fsdp-tmp"));
}

TEST(AtomicFolder, files_may_lie_in_folders_inside_it) {
  TempDir dir;
  for (const char* text : {"first", "second"}) {
    const auto folder = new_folder(dir / "out", {.replace = true});
    folder->add_file("a_0/.metadata").write_at(0, to_bytes(text));
    folder->add_file("a_0/__0_0.distcp");
    folder->add_file("b.json");
    expect_error(ErrorCode::kExists, "out/a_0/.metadata: is written twice",
                 [&] { folder->add_file("a_0/.metadata"); });
    folder->commit();
    EXPECT_EQ(content(dir / "out/a_0/.metadata"), text);
    EXPECT_EQ(names(dir / "out/a_0"), (std::set<std::string>{".metadata", "__0_0.distcp"}));
    EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
  }
  {
    const auto folder = new_folder(dir / "other", {});
    folder->add_file("a_0/.metadata");
  }
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
}

TEST(AtomicFolder, a_folder_inside_with_anything_foreign_in_it_is_refused) {
  TempDir dir;
  write_folder(dir / "out", {}, "old");
  std::filesystem::create_directory(dir / "out/sub");
  write_file(dir / "out/sub/a.distcp", "a");
  write_file(dir / "out/sub/notes.txt", "mine");
  expect_error(ErrorCode::kExists, "out: holds 'sub', which is not a file of a checkpoint",
               [&] { new_folder(dir / "out", {.replace = true}); });
  std::filesystem::remove(dir / "out/sub/notes.txt");
  write_folder(dir / "out", {.replace = true}, "new");
  EXPECT_EQ(content(dir / "out/.metadata"), "new");
  EXPECT_FALSE(std::filesystem::exists(dir / "out/sub"));
}

TEST(AtomicFolder, a_killed_writer_of_a_folder_inside_is_followed_by_the_next) {
  TempDir dir;
  run_and_kill([&] {
    const auto folder = new_folder(dir / "out", {});
    folder->add_file("a_0/.metadata");
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_TRUE(std::filesystem::exists(dir / ".out.fsdp-tmp/a_0/.metadata"));
  write_folder(dir / "out", {}, "new");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
}

TEST(AtomicFolder, of_many_writers_at_once_each_succeeds_or_is_busy) {
  TempDir dir;
  std::atomic<int> committed{0};
  std::atomic<int> unexpected{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 6; ++i) {
    writers.emplace_back([&] {
      for (int round = 0; round < 40; ++round) {
        try {
          write_folder(dir / "out", {.replace = true, .sync = false}, "whole");
          ++committed;
        } catch (const Error& e) {
          if (e.code() != ErrorCode::kBusy && unexpected++ == 0) ADD_FAILURE() << e.what();
        }
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(committed, 0);
  EXPECT_EQ(content(dir / "out/a.safetensors"), "whole");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"out"});
}

// A reader of a folder that is being replaced finds the old one or the new one, never a mix of
// both.
TEST(AtomicFolder, a_reader_meanwhile_sees_the_old_or_the_new) {
  TempDir dir;
  write_folder(dir / "out", {}, "00");
  std::atomic<bool> done{false};
  std::jthread reader([&] {
    while (!done) {
      const int fd = ::open((dir / "out").c_str(), O_RDONLY | O_DIRECTORY);
      if (fd < 0) {
        ADD_FAILURE() << "the destination was away";
        return;
      }
      ::close(fd);
    }
  });
  for (int i = 1; i < 100; ++i)
    write_folder(dir / "out", {.replace = true, .sync = false}, std::to_string(i));
  done = true;
}

TEST(AtomicFolder, leaves_a_seal_of_all_its_files) {
  TempDir dir;
  write_file(dir / "linked", "shared bytes");
  write_file(dir / "copied", "copied bytes");
  for (const bool replace : {false, true}) {
    const auto folder = new_folder(dir / "out", {.replace = replace, .sync = false, .seal = true});
    folder->add_file("a.distcp").write_at(0, to_bytes(replace ? "second" : "first"));
    folder->add_file("sub/.metadata").write_at(0, to_bytes("metadata"));
    folder->add_file("empty.distcp");
    folder->link_file("linked.distcp", *file_at(dir / "linked"));
    folder->link_file("copied.distcp", *file_at(dir / "copied"), {.hard_link = false});
    folder->commit();
    expect_seals(dir / "out/fsdp_seal.json", dir / "out",
                 {"a.distcp", "copied.distcp", "empty.distcp", "linked.distcp", "sub/.metadata"});
  }
  write_folder(dir / "out", {.replace = true}, "unsealed");
  EXPECT_EQ(names(dir / "out"), (std::set<std::string>{".metadata", "a.safetensors"}));
}

TEST(AtomicFolder, a_seal_lists_what_others_put_into_the_folder) {
  TempDir dir;
  const auto folder = new_shared_folder(dir / "out", {.seal = true});
  folder->add_file("a.distcp").write_at(0, to_bytes("a"));
  write_file(dir / ".out.fsdp-tmp/b.distcp", "b");
  folder->add_sealed({"b.distcp", 1, crc32(0, to_bytes("b"))});
  folder->commit();
  expect_seals(dir / "out/fsdp_seal.json", dir / "out", {"a.distcp", "b.distcp"});
}

}  // namespace
}  // namespace fsdp::formats
