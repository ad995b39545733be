// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/asked_file.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::hdf5 {
namespace {

using fsdp::test::expect_error;

std::vector<std::byte> numbered(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

TEST(AskedFile, gives_the_bytes_of_the_parent) {
  const std::vector<std::byte> content = numbered((3U << 20U) + 5);
  Connection ends = connect_here();
  // The parent answers four requests: a short one, and one that is longer than an answer may be.
  std::jthread parent([&] {
    for (int i = 0; i < 4; ++i) answer_asked(ends.parent.get(), MemorySource(content));
  });
  const AskedFile file(ends.child.get(), content.size());
  EXPECT_EQ(file.size(), content.size());
  EXPECT_EQ(read_bytes(file, 9, 3), std::vector(content.begin() + 9, content.begin() + 12));
  const std::size_t rest = content.size() - 100;
  EXPECT_EQ(read_bytes(file, 100, rest), std::vector(content.begin() + 100, content.end()));
  expect_error(ErrorCode::kTruncated,
               "bytes 3145732 to 3145732+2 are needed, but there are only 3145733",
               [&] { read_bytes(file, content.size() - 1, 2); });
  std::array<std::byte, 2> out{};
  expect_error(ErrorCode::kTruncated,
               "2 bytes at byte 3145732 are needed, but the file has 3145733",
               [&] { file.read_at(content.size() - 1, out); });
}

TEST(AskedFile, an_end_of_the_parent_is_an_error) {
  Connection ends = connect_here();
  ends.parent.reset();
  // Otherwise the signal of a connection without a reader would end this process.
  ::signal(SIGPIPE, SIG_IGN);
  const AskedFile file(ends.child.get(), 10);
  expect_error(ErrorCode::kIo, "the process that reads the file does not answer",
               [&] { read_bytes(file, 0, 1); });
}

TEST(AskedFile, requests_beyond_what_may_be_asked_are_refused) {
  const std::vector<std::byte> content = numbered(100);
  const auto ask = [&](std::uint64_t offset, std::uint64_t bytes) {
    Connection ends = connect_here();
    const std::array<std::uint64_t, 2> request = {offset, bytes};
    ASSERT_EQ(::write(ends.child.get(), request.data(), sizeof request),
              static_cast<ssize_t>(sizeof request));
    expect_error(ErrorCode::kH5ReaderFailed, "the process that reads HDF5 asked for ",
                 [&] { answer_asked(ends.parent.get(), MemorySource(content)); });
  };
  ask(0, 101);
  ask(101, 0);
  ask(UINT64_MAX, 2);
  ask(2, UINT64_MAX);
  ask(0, (1U << 20U) + 1);
}

TEST(AskedFile, a_child_that_ended_is_no_error_of_the_parent) {
  const std::vector<std::byte> content = numbered(100);
  Connection ends = connect_here();
  const std::array<std::uint64_t, 2> request = {0, 100};
  ASSERT_EQ(::write(ends.child.get(), request.data(), sizeof request),
            static_cast<ssize_t>(sizeof request));
  ends.child.reset();
  answer_asked(ends.parent.get(), MemorySource(content));
  answer_asked(ends.parent.get(), MemorySource(content));  // nothing was asked
}

}  // namespace
}  // namespace fsdp::formats::hdf5
