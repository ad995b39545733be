// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/byte_source.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using test::expect_error;

constexpr std::uint64_t kMost = ~std::uint64_t{0};

// 0, 1, 2, ... so that a byte tells where it comes from.
std::vector<std::byte> counting(std::size_t first, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

// Every range of a source of the bytes 0 to `size` - 1 is read correctly, every other rejected.
void expect_ranges(const ByteSource& source, std::size_t first, std::size_t size) {
  ASSERT_EQ(source.size(), size);
  for (std::size_t offset = 0; offset <= size; ++offset) {
    for (std::size_t count = 0; count <= size - offset; ++count) {
      ASSERT_EQ(read_bytes(source, offset, count), counting(first + offset, count))
          << offset << "+" << count;
    }
    expect_error(ErrorCode::kTruncated, "are needed, but there are only",
                 [&] { read_bytes(source, offset, size - offset + 1); });
    expect_error(ErrorCode::kTruncated, "are needed, but there are only",
                 [&] { read_bytes(source, offset, kMost); });
    std::vector<std::byte> out(size - offset + 1);
    expect_error(ErrorCode::kTruncated, "", [&] { source.read_at(offset, out); });
  }
  std::vector<std::byte> one(1);
  expect_error(ErrorCode::kTruncated, "", [&] { source.read_at(kMost, one); });
}

// Counts the reads that reach it.
class CountingSource : public ByteSource {
 public:
  explicit CountingSource(std::span<const std::byte> bytes) : memory_(bytes) {}
  std::uint64_t size() const override { return memory_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    ++reads;
    memory_.read_at(offset, out);
  }
  mutable int reads = 0;

 private:
  MemorySource memory_;
};

TEST(MemorySource, reads_what_lies_inside_and_nothing_else) {
  const auto bytes = counting(0, 7);
  expect_ranges(MemorySource(bytes), 0, 7);
  expect_ranges(MemorySource({}), 0, 0);
}

TEST(ReadBytes, refuses_a_huge_length_before_it_allocates) {
  const auto bytes = counting(0, 7);
  expect_error(ErrorCode::kTruncated, "bytes 2 to 2+1099511627776 are needed, but there are only 7",
               [&] { read_bytes(MemorySource(bytes), 2, std::uint64_t{1} << 40U); });
}

TEST(SourceRange, is_a_source_of_its_own) {
  const auto bytes = counting(0, 20);
  const auto base = std::make_shared<MemorySource>(bytes);
  expect_ranges(SourceRange(base, 5, 9), 5, 9);
  expect_ranges(SourceRange(base, 20, 0), 20, 0);
  const auto outer = std::make_shared<SourceRange>(base, 5, 9);
  expect_ranges(SourceRange(outer, 2, 3), 7, 3);
}

TEST(SourceRange, must_lie_inside_its_base) {
  const auto bytes = counting(0, 20);
  const auto base = std::make_shared<MemorySource>(bytes);
  expect_error(ErrorCode::kTruncated, "there are only 20", [&] { SourceRange(base, 5, 16); });
  expect_error(ErrorCode::kTruncated, "there are only 20", [&] { SourceRange(base, 21, 0); });
  expect_error(ErrorCode::kTruncated, "there are only 20", [&] { SourceRange(base, 5, kMost); });
}

TEST(EndsCache, gives_the_bytes_of_its_base) {
  const auto bytes = counting(0, 12);
  const MemorySource base(bytes);
  for (const std::uint64_t head : {0U, 1U, 5U, 12U, 100U}) {
    for (const std::uint64_t tail : {0U, 1U, 5U, 12U, 100U}) {
      expect_ranges(EndsCache(base, head, tail), 0, 12);
    }
  }
}

TEST(EndsCache, reads_head_and_tail_once) {
  const auto bytes = counting(0, 100);
  const CountingSource base(bytes);
  const EndsCache cache(base, 10, 20);
  EXPECT_EQ(base.reads, 2);
  for (std::uint64_t at = 0; at < 10; ++at) read_bytes(cache, at, 10 - at);
  for (std::uint64_t at = 80; at < 100; ++at) read_bytes(cache, at, 100 - at);
  EXPECT_EQ(base.reads, 2);
  read_bytes(cache, 5, 10);
  read_bytes(cache, 40, 1);
  read_bytes(cache, 79, 2);
  EXPECT_EQ(base.reads, 5);
}

TEST(EndsCache, holds_a_small_base_whole_by_one_read) {
  const auto bytes = counting(0, 30);
  const CountingSource base(bytes);
  const EndsCache cache(base, 10, 20);
  read_bytes(cache, 5, 20);
  EXPECT_EQ(base.reads, 1);
}

}  // namespace
}  // namespace fsdp::formats
