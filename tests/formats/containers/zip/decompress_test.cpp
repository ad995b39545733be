// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/decompress.h"

#include <zstd.h>

#include <algorithm>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/containers/zip/reader.h"
#include "tests/support/deflated.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using test::deflated;

std::vector<std::byte> zstd(std::span<const std::byte> plain) {
  std::vector<std::byte> out(ZSTD_compressBound(plain.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), 3));
  return out;
}

// Half noise, half zeros: stored and highly compressed blocks.
std::vector<std::byte> sample(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::mt19937 random(7);
  for (std::size_t i = 0; i < count / 2; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

// Collects the output of a decompressor.
struct Collected {
  std::vector<std::byte> bytes;
  std::size_t largest = 0;
  ByteSink sink() {
    return [this](std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
      largest = std::max(largest, piece.size());
    };
  }
};

const std::vector<std::size_t> kSizes = {0, 1, 1000, 256 * 1024, 256 * 1024 + 1, 3'000'000};

TEST(Inflate, gives_back_what_was_deflated_in_pieces_of_bounded_size) {
  for (const std::size_t size : kSizes) {
    const auto plain = sample(size);
    const auto packed = deflated(plain);
    Collected out;
    inflate(MemorySource(packed), size, out.sink());
    EXPECT_EQ(out.bytes, plain) << size;
    EXPECT_LE(out.largest, 256U * 1024);
  }
}

TEST(Inflate, reads_an_entry_that_pythons_zipfile_deflated) {
  const auto archive = test::read_data("zip/deflated.zip");
  const MemorySource source(archive);
  const ZipReader reader(source);
  const ZipEntry& entry = *reader.find("archive/data.pkl");
  ASSERT_TRUE(entry.deflated);
  const auto packed = read_bytes(source, entry.data_offset, entry.compressed_bytes);
  Collected out;
  inflate(MemorySource(packed), entry.uncompressed_bytes, out.sink());
  EXPECT_EQ(out.bytes.size(), 300U);
  EXPECT_TRUE(test::to_text(out.bytes).starts_with("hello hello "));
}

TEST(Inflate, more_or_less_than_expected_is_an_error) {
  const auto packed = deflated(sample(1000));
  Collected out;
  test::expect_error(ErrorCode::kLimitRatio, "more than the expected 999 bytes",
                     [&] { inflate(MemorySource(packed), 999, out.sink()); });
  EXPECT_TRUE(out.bytes.empty());
  test::expect_error(ErrorCode::kTruncated, "holds 1000 bytes, expected 1001",
                     [&] { inflate(MemorySource(packed), 1001, out.sink()); });
}

TEST(Inflate, a_bomb_stops_at_the_expected_size) {
  const std::vector<std::byte> zeros(64 << 20);
  const auto packed = deflated(zeros);
  ASSERT_LT(packed.size(), 70'000U);
  Collected out;
  test::expect_error(ErrorCode::kLimitRatio, "more than the expected 1000 bytes",
                     [&] { inflate(MemorySource(packed), 1000, out.sink()); });
  EXPECT_TRUE(out.bytes.empty());
  test::expect_error(ErrorCode::kLimitRatio, "cannot hold the expected 1000000000000",
                     [&] { inflate(MemorySource(packed), 1'000'000'000'000, out.sink()); });
}

TEST(Inflate, every_truncation_is_an_error) {
  const auto packed = deflated(sample(300));
  for (std::size_t length = 0; length < packed.size(); ++length) {
    Collected out;
    test::expect_error(ErrorCode::kTruncated, "deflate: ", [&] {
      inflate(MemorySource(std::span(packed).first(length)), 300, out.sink());
    });
  }
}

TEST(Inflate, what_is_no_deflate_stream_is_refused) {
  Collected out;
  const auto junk = test::to_bytes(std::string(100, '\xFF'));
  test::expect_error(ErrorCode::kZipMismatch, "deflate: no valid stream near byte",
                     [&] { inflate(MemorySource(junk), 100, out.sink()); });
  auto longer = deflated(sample(1000));
  longer.resize(longer.size() + 3);
  test::expect_error(ErrorCode::kZipMismatch, "the stream ends 3 bytes early",
                     [&] { inflate(MemorySource(longer), 1000, out.sink()); });
}

TEST(Unzstd, gives_back_what_was_compressed_in_pieces_of_bounded_size) {
  for (const std::size_t size : kSizes) {
    const auto plain = sample(size);
    const auto packed = zstd(plain);
    Collected out;
    unzstd(MemorySource(packed), size, out.sink());
    EXPECT_EQ(out.bytes, plain) << size;
    EXPECT_LE(out.largest, 256U * 1024);
  }
}

TEST(Unzstd, several_frames_follow_one_another) {
  const auto plain = sample(1000);
  auto packed = zstd(plain);
  const auto again = packed;
  packed.insert(packed.end(), again.begin(), again.end());
  Collected out;
  unzstd(MemorySource(packed), 2000, out.sink());
  EXPECT_EQ(out.bytes.size(), 2000U);
}

TEST(Unzstd, more_than_the_limit_is_an_error) {
  const auto packed = zstd(std::vector<std::byte>(64 << 20));
  ASSERT_LT(packed.size(), 10'000U);
  Collected out;
  test::expect_error(ErrorCode::kLimitRatio, "zstd: the stream holds more than the expected 1000",
                     [&] { unzstd(MemorySource(packed), 1000, out.sink()); });
  EXPECT_TRUE(out.bytes.empty());
}

TEST(Unzstd, every_truncation_is_an_error) {
  const auto packed = zstd(sample(300));
  for (std::size_t length = 0; length < packed.size(); ++length) {
    Collected out;
    test::expect_error(ErrorCode::kTruncated, "zstd: ", [&] {
      unzstd(MemorySource(std::span(packed).first(length)), 300, out.sink());
    });
  }
}

TEST(Unzstd, other_streams_and_huge_windows_are_refused) {
  Collected out;
  const auto junk = test::to_bytes(std::string(100, '\x01'));
  test::expect_error(ErrorCode::kUnsupported, "zstd: no valid stream near byte",
                     [&] { unzstd(MemorySource(junk), 100, out.sink()); });
  // Only a frame header: no content size, window descriptor of 256 MiB.
  const auto wide = test::to_bytes(std::string("\x28\xB5\x2F\xFD\x00\x90\x01\x00\x00", 9));
  test::expect_error(ErrorCode::kUnsupported,
                     "zstd: ", [&] { unzstd(MemorySource(wide), 100, out.sink()); });
}

}  // namespace
}  // namespace fsdp::formats
