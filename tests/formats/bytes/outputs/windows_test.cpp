// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/windows.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;
using fsdp::test::read_file;
using fsdp::test::TempDir;

constexpr std::size_t kWindow = OutputWindows::kWindowBytes;
constexpr std::uint64_t kMemory = 16U << 20U;

std::unique_ptr<OutputFile> open_output(const std::filesystem::path& path, bool synced = true) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  EXPECT_GE(fd.get(), 0);
  return std::make_unique<OutputFile>(std::move(fd), path.filename().native(), synced, true);
}

// Part of a file: another writer fills the space between parts, like the headers of an
// archive.
struct Block {
  std::size_t file;
  std::uint64_t offset;
  std::size_t bytes;
  bool header;
};

struct Case {
  CacheUse use;
  bool synced;
  std::uint64_t memory;
  const char* name;
};

class OutputWindowsTest : public ::testing::TestWithParam<Case> {
 protected:
  TempDir dir_;
};

TEST_P(OutputWindowsTest, blocks_in_any_order_by_any_threads_are_where_they_belong) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same every time
  constexpr std::size_t kLengths[] = {
      0, 1, 4095, 4096, 4097, kWindow - 1, kWindow, kWindow + 1, 9 * kWindow + 4097};
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    std::vector<std::vector<std::byte>> truth;
    std::vector<std::unique_ptr<OutputFile>> files;
    std::vector<Block> blocks;
    for (const std::size_t length : kLengths) {
      std::vector<std::byte> bytes(length);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      for (std::size_t at = 0; at < length;) {
        // Blocks as large as a tensor's, and the space between them.
        const bool header = random() % 3 == 0;
        const std::size_t most = header ? 300 : random() % 2 == 0 ? 5000 : 3 * kWindow / 2;
        const std::size_t count = std::min(length - at, 1 + random() % most);
        blocks.push_back({files.size(), at, count, header});
        at += count;
      }
      truth.push_back(std::move(bytes));
      files.push_back(
          open_output(dir_ / std::to_string(round).append("-").append(std::to_string(files.size())),
                      GetParam().synced));
      files.back()->reserve(length);
    }
    // From nearly in order, like a copy, to no order at all.
    const std::size_t reach = round < 4 ? 4 : blocks.size();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::swap(blocks[i], blocks[std::min(blocks.size() - 1, i + random() % reach)]);
    }
    OutputWindows windows(GetParam().memory, GetParam().use);
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < blocks.size(); i = next++) {
        const Block& block = blocks[i];
        const auto bytes = std::span(truth[block.file]).subspan(block.offset, block.bytes);
        const std::uint32_t crc = crc32(0, bytes);
        if (block.header) {
          files[block.file]->write_at(block.offset, bytes, crc);
        } else {
          windows.write(*files[block.file], {block.offset, bytes, nullptr}, crc);
        }
      }
    };
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 3; ++i) threads.emplace_back(work);
    }
    windows.flush();
    for (std::size_t i = 0; i < files.size(); ++i) {
      files[i]->finish(true);
      EXPECT_EQ(files[i]->crc(), crc32(0, truth[i])) << i;
      EXPECT_TRUE(read_file(dir_ / files[i]->name()) == truth[i]) << i;
    }
  }
}

TEST_P(OutputWindowsTest, a_failing_write_is_an_error_that_names_the_file) {
  // A limit on the length of files stands for a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1U << 20U, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    const std::vector<std::byte> bytes(4 * kWindow);
    const auto out = open_output(dir_ / "out", GetParam().synced);
    OutputWindows windows(GetParam().memory, GetParam().use);
    expect_error(ErrorCode::kNoSpace, "out: writing ", [&] {
      for (int i = 0; i < 10; ++i) windows.write(*out, {i * bytes.size(), bytes, nullptr}, 0);
      windows.flush();
    });
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

std::size_t threads_now() {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    count += task.exists() ? 1 : 0;
  }
  return count;
}

TEST_P(OutputWindowsTest, what_is_given_up_leaves_no_thread) {
  const std::size_t before = threads_now();
  const std::vector<std::byte> bytes(kWindow / 2 + 1);
  const auto out = open_output(dir_ / "out", GetParam().synced);
  {
    OutputWindows windows(GetParam().memory, GetParam().use);
    for (int i = 0; i < 20; ++i) windows.write(*out, {i * bytes.size(), bytes, nullptr}, 0);
  }
  EXPECT_EQ(threads_now(), before);
}

INSTANTIATE_TEST_SUITE_P(
    , OutputWindowsTest,
    ::testing::Values(Case{CacheUse::kNever, true, kMemory, "direct"},
                      Case{CacheUse::kNever, true, 4 * kWindow, "direct_in_little_memory"},
                      Case{CacheUse::kNever, true, 0, "without_memory"},
                      Case{CacheUse::kNever, false, kMemory, "not_synced"},
                      Case{CacheUse::kAlways, true, kMemory, "cached"},
                      Case{CacheUse::kWhileQuick, true, kMemory, "while_quick"}),
    [](const auto& tried) { return std::string(tried.param.name); });

TEST(OutputWindows, memory_is_within_what_is_given) {
  EXPECT_EQ(OutputWindows::bytes_of(0), 0U);
  EXPECT_EQ(OutputWindows::bytes_of(4 * kWindow - 1), 0U);
  EXPECT_EQ(OutputWindows::bytes_of(4 * kWindow), 4 * kWindow);
  EXPECT_EQ(OutputWindows::bytes_of(std::uint64_t{1} << 40U), 8 * kWindow);
}

}  // namespace
}  // namespace fsdp::formats
