// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;
using fsdp::test::read_file;
using fsdp::test::TempDir;
using fsdp::test::to_bytes;

OutputFile open_output(const std::filesystem::path& path) {
  return OutputFile(
      FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)),
      path.native(), false, true);
}

// Compares with what reading the file gives.
void expect_right(const OutputFile& file, const std::filesystem::path& path) {
  const std::vector<std::byte> content = read_file(path);
  EXPECT_EQ(file.bytes(), content.size());
  EXPECT_EQ(file.crc(), crc32(0, content));
}

TEST(OutputFileSum, is_that_of_parts_written_in_any_order) {
  TempDir dir;
  OutputFile file = open_output(dir / "a");
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same every time
  std::vector<std::byte> content(100'000);
  for (std::byte& byte : content) byte = static_cast<std::byte>(random());
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < content.size(); at += 1000) starts.push_back(at);
  std::shuffle(starts.begin(), starts.end(), random);
  for (const std::size_t at : starts) {
    const auto part = std::span<const std::byte>(content).subspan(at, 1000);
    file.write_at(at, part, at % 2000 == 0 ? std::optional(crc32(0, part)) : std::nullopt);
  }
  file.finish(false);
  expect_right(file, dir / "a");
}

TEST(OutputFileSum, of_an_empty_file_and_of_one_nobody_wrote_to) {
  TempDir dir;
  OutputFile empty = open_output(dir / "empty");
  empty.finish(false);
  expect_right(empty, dir / "empty");
  OutputFile zeros = open_output(dir / "zeros");
  zeros.reserve(3'000'000);
  zeros.finish(false);
  EXPECT_EQ(zeros.bytes(), 3'000'000U);
  expect_right(zeros, dir / "zeros");
}

TEST(OutputFileSum, what_was_left_out_or_written_twice_is_read_again) {
  TempDir dir;
  OutputFile gaps = open_output(dir / "gaps");
  gaps.reserve(5000);
  gaps.write_at(100, to_bytes("in the middle"));
  gaps.put_at(2000, to_bytes("told by nobody"));
  gaps.write_at(4000, to_bytes("further on"));
  gaps.finish(false);
  expect_right(gaps, dir / "gaps");
  OutputFile twice = open_output(dir / "twice");
  twice.write_at(0, to_bytes("0123456789"));
  twice.write_at(5, to_bytes("abcdefghij"));
  twice.write_at(5, to_bytes("ABCDEFGHIJ"));
  twice.finish(false);
  expect_right(twice, dir / "twice");
}

TEST(OutputFileSum, of_a_stream) {
  TempDir dir;
  for (const CacheUse use : {CacheUse::kAlways, CacheUse::kNever}) {
    const auto path = dir / (use == CacheUse::kAlways ? "cached" : "direct");
    OutputFile file(FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)),
                    path.native(), true, true);
    OutputStream out(file, use);
    const std::vector<std::byte> block(300'001, std::byte{0x5a});
    for (int i = 0; i < 20; ++i) {
      out.write(to_bytes("head"));
      out.write(block, crc32(0, block));
    }
    out.flush();
    file.finish(false);
    expect_right(file, path);
  }
}

TEST(OutputFile, a_failed_fsync_is_final) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  FileDescriptor reading(ends[0]);
  OutputFile pipe(FileDescriptor(ends[1]), "pipe");  // fsync of a pipe fails with EINVAL
  expect_error(ErrorCode::kIo, "pipe: fsync", [&] { pipe.finish(true); });
  expect_error(ErrorCode::kIo, "cannot be finished now", [&] { pipe.finish(true); });
}

TEST(OutputFile, finishing_twice_is_once) {
  TempDir dir;
  const auto output = new_file(dir / "x", {});
  output->file().finish(true);
  output->file().finish(true);
  output->commit();
  expect_error(ErrorCode::kIo, "Bad file descriptor",
               [&] { output->file().write_at(0, to_bytes("late")); });
}

}  // namespace
}  // namespace fsdp::formats
