// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/crc32.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using test::to_bytes;

std::vector<std::byte> noise(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::mt19937 random(11);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The definition, a bit at a time.
std::uint32_t slow_crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

TEST(Crc32, has_the_published_check_value) {
  EXPECT_EQ(crc32(0, to_bytes("123456789")), 0xCBF43926U);
  EXPECT_EQ(crc32(0, {}), 0U);
}

TEST(Crc32, agrees_with_its_definition_at_every_length) {
  const auto bytes = noise(600);
  for (std::size_t count = 0; count <= bytes.size(); ++count) {
    const auto part = std::span(bytes).first(count);
    ASSERT_EQ(crc32(0, part), slow_crc32(part)) << count;
  }
}

TEST(Crc32, continues_where_it_stopped) {
  const auto bytes = noise(1000);
  const std::uint32_t whole = crc32(0, bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const auto head = std::span(bytes).first(cut);
    const auto tail = std::span(bytes).subspan(cut);
    EXPECT_EQ(crc32(crc32(0, head), tail), whole) << cut;
  }
}

TEST(Crc32Combine, joins_crcs_of_adjacent_parts) {
  const auto bytes = noise(1000);
  const std::uint32_t whole = crc32(0, bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const auto head = std::span(bytes).first(cut);
    const auto tail = std::span(bytes).subspan(cut);
    EXPECT_EQ(crc32_combine(crc32(0, head), crc32(0, tail), tail.size()), whole) << cut;
  }
}

TEST(Crc32Combine, counts_lengths_beyond_4_gib) {
  // A run of zeros doubled until it has 2^33 bytes, joined only by crc32_combine, then cut in two
  // elsewhere.
  const std::vector<std::byte> block(1 << 16);
  std::uint32_t crc = crc32(0, block);
  std::uint32_t half = 0;
  for (std::uint64_t bytes = block.size(); bytes < std::uint64_t{1} << 33U; bytes *= 2) {
    half = crc;
    crc = crc32_combine(crc, crc, bytes);
  }
  const std::uint64_t rest_bytes = (std::uint64_t{1} << 33U) - block.size();
  std::uint32_t rest = 0;
  std::uint64_t done = 0;
  std::uint32_t power = crc32(0, block);
  for (std::uint64_t bytes = block.size(); bytes < std::uint64_t{1} << 33U; bytes *= 2) {
    rest = done == 0 ? power : crc32_combine(rest, power, bytes);
    done += bytes;
    power = crc32_combine(power, power, bytes);
  }
  ASSERT_EQ(done, rest_bytes);
  EXPECT_EQ(crc32_combine(crc32(0, block), rest, rest_bytes), crc);
  EXPECT_NE(half, crc);
}

}  // namespace
}  // namespace fsdp::formats
