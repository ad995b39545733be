// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/run_window.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

class RunWindowTest : public ::testing::Test {
 protected:
  // Makes a file of `count` bytes, on the disk and if possible not in the page cache.
  std::shared_ptr<const File> make(const std::string& name, std::size_t count, unsigned seed) {
    std::string bytes(count, '\0');
    for (std::size_t i = 0; i < count; ++i)
      bytes[i] = static_cast<char>((i + seed) * 2654435761U >> 13U);
    const auto path = dir_.path() / name;
    std::ofstream(path, std::ios::binary) << bytes;
    const auto file = file_at(path);
    ::fsync(file->fd());
    ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
    return file;
  }
  static std::vector<std::byte> plain(const File& file, std::uint64_t begin, std::uint64_t end) {
    return read_bytes(file, begin, end - begin);
  }
  static std::vector<std::byte> by_steps(RunWindow& window, const ByteSource& source,
                                         std::uint64_t begin, std::uint64_t end,
                                         std::uint64_t step) {
    std::vector<std::byte> bytes(end - begin);
    for (std::uint64_t at = begin; at < end; at += step) {
      const auto part = std::span(bytes).subspan(at - begin, std::min(step, end - at));
      source.read_run(at, part, end, window);
    }
    return bytes;
  }

  static constexpr std::uint64_t kWindow = RunWindow::kRunBytes;
  test::TempDir dir_;
};

TEST_F(RunWindowTest, gives_the_bytes_of_the_file_whatever_the_run) {
  const std::uint64_t size = 2 * kWindow + 12345;
  const auto file = make("a", size, 1);
  RunWindow window;
  for (const auto& [begin, end] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, size},
                                                            {0, 100},
                                                            {1, kWindow},
                                                            {4095, 4097},
                                                            {777, kWindow + 777},
                                                            {kWindow - 1, size},
                                                            {size - 1, size},
                                                            {size - (2U << 20U), size}}) {
    for (const std::uint64_t step : {std::uint64_t{1} << 18U, kWindow + 1}) {
      SCOPED_TRACE(std::to_string(begin) + " to " + std::to_string(end));
      ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
      const auto found = by_steps(window, *file, begin, end, step);
      EXPECT_TRUE(found == plain(*file, begin, end));
    }
  }
}

TEST_F(RunWindowTest, does_not_take_one_file_for_another) {
  const auto a = make("a", kWindow, 1);
  const auto b = make("b", kWindow, 2);
  RunWindow window;
  const auto first = by_steps(window, *a, 0, kWindow, 1U << 20U);
  const auto second = by_steps(window, *b, 0, kWindow, 1U << 20U);
  EXPECT_TRUE(first == plain(*a, 0, kWindow));
  EXPECT_TRUE(second == plain(*b, 0, kWindow));
  EXPECT_FALSE(first == second);
}

TEST_F(RunWindowTest, a_part_of_a_file_is_read_at_its_place) {
  const auto file = make("a", 3 * kWindow, 1);
  const SourceRange range(file, 1001, 2 * kWindow);
  RunWindow window;
  EXPECT_TRUE(by_steps(window, range, 5, 2 * kWindow, 1U << 20U) ==
              plain(*file, 1006, 1001 + 2 * kWindow));
}

TEST_F(RunWindowTest, a_file_that_lost_its_end_is_an_error) {
  const auto file = make("a", kWindow, 1);
  std::filesystem::resize_file(dir_.path() / "a", kWindow / 2);
  RunWindow window;
  try {
    by_steps(window, *file, 0, kWindow, 1U << 20U);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kChanged);
    EXPECT_NE(std::string(e.what()).find("ends at byte 2097152"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace fsdp::formats
