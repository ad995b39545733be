// SPDX-License-Identifier: Apache-2.0
#include "formats/state/checkpoint/file_pool.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/state/checkpoint/spill.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

std::vector<FileEntry> entries(int count) {
  std::vector<FileEntry> all;
  for (int i = 0; i < count; ++i)
    all.push_back({.name = "f" + std::to_string(i), .bytes = {}, .rank = {}});
  return all;
}

TEST(FilePool, learns_sizes_and_leaves_missing_files_without_one) {
  const test::TempDir folder;
  test::write_file(folder / "f0", "four");
  const auto directory = folder_at(folder.path());
  FilePool pool(*directory);
  auto files = entries(2);
  pool.examine(files);
  EXPECT_EQ(files[0].bytes, 4U);
  EXPECT_FALSE(files[1].bytes);
  EXPECT_EQ(pool.get(0)->size(), 4U);
  EXPECT_EQ(pool.get(0), pool.get(0));
  test::expect_error(ErrorCode::kShardMissing, "f1: no such file", [&] { pool.get(1); });
  pool.check_unchanged();
}

TEST(FilePool, gives_the_file_that_was_examined_or_none) {
  const test::TempDir folder;
  test::write_file(folder / "f0", "four");
  const auto directory = folder_at(folder.path());
  FilePool pool(*directory);
  auto files = entries(1);
  pool.examine(files);
  test::write_file(folder / "f0", "five!");
  test::expect_error(ErrorCode::kChanged, "f0: was written to", [&] { pool.get(0); });
}

TEST(FilePool, notices_a_file_that_is_replaced_while_it_is_held) {
  const test::TempDir folder;
  test::write_file(folder / "f0", "four");
  const auto directory = folder_at(folder.path());
  FilePool pool(*directory);
  auto files = entries(1);
  pool.examine(files);
  pool.get(0);
  test::write_file(folder / "new", "other");
  fs::rename(folder / "new", folder / "f0");
  test::expect_error(ErrorCode::kChanged, "f0: was written to", [&] { pool.check_unchanged(); });
}

TEST(FilePool, holds_few_descriptors_for_many_files) {
  const test::TempDir folder;
  constexpr int kFiles = 600;
  for (int i = 0; i < kFiles; ++i)
    test::write_file(folder / ("f" + std::to_string(i)), std::to_string(i));
  const auto directory = folder_at(folder.path());
  FilePool pool(*directory);
  auto files = entries(kFiles);
  pool.examine(files);
  const auto open_now = [] {
    const fs::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = open_now();
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kFiles; ++i) {
      const auto file = pool.get(i);
      EXPECT_EQ(test::to_text(read_bytes(*file, 0, file->size())), std::to_string(i));
    }
  }
  EXPECT_LE(open_now() - before, 256);
}

TEST(FilePool, closes_nothing_for_a_file_at_hand) {
  const test::TempDir folder;
  constexpr int kFiles = 300;
  for (int i = 0; i < kFiles; ++i) test::write_file(folder / ("f" + std::to_string(i)), "x");
  const auto directory = folder_at(folder.path());
  FilePool pool(*directory);
  auto files = entries(kFiles);
  pool.examine(files);
  std::vector<std::shared_ptr<const File>> open;
  for (std::uint32_t i = 0; i < 256; ++i) open.push_back(pool.get_at_hand(i));
  EXPECT_THAT(open, ::testing::Each(::testing::NotNull()));
  EXPECT_EQ(pool.get_at_hand(256), nullptr) << "there is no room";
  EXPECT_EQ(pool.get_at_hand(0), open[0]);
  EXPECT_NE(pool.get(256), nullptr);
  EXPECT_EQ(pool.get_at_hand(256), pool.get(256));
}

TEST(Spill, decompresses_once_for_each_place) {
  Spill spill;
  int calls = 0;
  const auto get = [&](const char* file, std::uint64_t offset, std::string content) {
    const auto range = spill.get(file, offset, [&, content](const ByteSink& sink) {
      ++calls;
      sink(test::to_bytes(content));
    });
    return test::to_text(read_bytes(*range.source, range.offset, range.bytes));
  };
  EXPECT_EQ(get("a", 0, "first"), "first");
  EXPECT_EQ(get("a", 5, "second"), "second");
  EXPECT_EQ(get("a", 0, "never asked"), "first");
  EXPECT_EQ(get("b", 0, ""), "");
  EXPECT_EQ(calls, 3);
}

TEST(Spill, does_not_keep_what_failed) {
  Spill spill;
  test::expect_error(ErrorCode::kLimitRatio, "too much", [&] {
    spill.get("a", 0, [](const ByteSink& sink) {
      sink(test::to_bytes("half"));
      throw Error(ErrorCode::kLimitRatio, "too much");
    });
  });
  const auto range = spill.get("a", 0, [](const ByteSink& sink) { sink(test::to_bytes("whole")); });
  EXPECT_EQ(test::to_text(read_bytes(*range.source, range.offset, range.bytes)), "whole");
}

}  // namespace
}  // namespace fsdp::formats
