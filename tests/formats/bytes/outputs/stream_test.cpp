// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/stream.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

std::vector<std::byte> pattern(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
  return bytes;
}

// Writes past the page cache if requested and supported by the temporary folder's file system.
class OutputStreamTest : public ::testing::TestWithParam<std::pair<CacheUse, bool>> {
 protected:
  OutputFile file(const std::string& name) const {
    FileDescriptor fd(
        ::open((dir_.path() / name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    EXPECT_GE(fd.get(), 0);
    return OutputFile(std::move(fd), name, GetParam().second);
  }
  std::vector<std::byte> content(const std::string& name) const {
    const auto file = file_at(dir_.path() / name);
    return read_bytes(*file, 0, file->size());
  }

  test::TempDir dir_;
};

TEST_P(OutputStreamTest, writes_what_it_was_given_whatever_the_lengths) {
  constexpr std::size_t kBuffer = OutputStream::kBufferBytes;
  for (const std::size_t total :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
        kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer, 3 * kBuffer + 4096 + 7}) {
    for (const std::size_t step : {std::size_t{1001}, std::size_t{1} << 18U, 3 * kBuffer}) {
      const std::string name = std::to_string(total) + "-" + std::to_string(step);
      SCOPED_TRACE(name);
      const auto bytes = pattern(total);
      OutputFile out = file(name);
      out.reserve(total);
      OutputStream stream(out, GetParam().first);
      for (std::size_t at = 0; at < total; at += step)
        stream.write(std::span(bytes).subspan(at, std::min(step, total - at)));
      EXPECT_EQ(stream.position(), total);
      stream.flush();
      out.finish(true);
      EXPECT_TRUE(content(name) == bytes);
    }
  }
}

TEST_P(OutputStreamTest, goes_on_behind_a_flush) {
  const auto bytes = pattern(2 * OutputStream::kBufferBytes + 100);
  OutputFile out = file("out");
  OutputStream stream(out, GetParam().first);
  stream.write(std::span(bytes).first(5000));
  stream.flush();
  stream.write(std::span(bytes).subspan(5000));
  stream.flush();
  out.finish(true);
  EXPECT_TRUE(content("out") == bytes);
}

TEST_P(OutputStreamTest, a_failing_write_is_an_error_that_names_the_file) {
  // A limit on the length of files stands for a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1U << 20U, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  {
    const auto bytes = pattern(4 * OutputStream::kBufferBytes);
    OutputFile out = file("out");
    OutputStream stream(out, GetParam().first);
    try {
      stream.write(bytes);
      stream.flush();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNoSpace);
      message = e.what();
    }
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message.rfind("out: writing ", 0), 0U) << message;
}

std::string name_of(const ::testing::TestParamInfo<std::pair<CacheUse, bool>>& info) {
  const auto [use, synced] = info.param;
  if (!synced) return "not_synced";
  return use == CacheUse::kNever ? "direct" : use == CacheUse::kAlways ? "cached" : "while_quick";
}

INSTANTIATE_TEST_SUITE_P(, OutputStreamTest,
                         ::testing::Values(std::pair{CacheUse::kNever, true},
                                           std::pair{CacheUse::kWhileQuick, true},
                                           std::pair{CacheUse::kAlways, true},
                                           std::pair{CacheUse::kWhileQuick, false}),
                         name_of);

}  // namespace
}  // namespace fsdp::formats
