// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/seal.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;
using fsdp::test::TempDir;
using fsdp::test::write_file;

// Python's result: zlib.crc32 of the lines above the last.
constexpr std::string_view kExample =
    "{\"fsdp_seal\":1,\"files\":[\n"
    "{\"name\":\".metadata\",\"bytes\":966,\"crc32\":\"0a1b2c3d\"},\n"
    "{\"name\":\"sub/__0_0.distcp\",\"bytes\":2838,\"crc32\":\"9e8f7a6b\"}\n"
    "],\"crc32\":\"f8f81e5b\"}\n";

std::vector<SealedFile> read_text(std::string_view text) {
  TempDir dir;
  write_file(dir / "seal", text);
  return read_seal(*file_at(dir / "seal"));
}

TEST(Seal, is_written_as_the_manual_shows_it) {
  const std::vector<SealedFile> files = {{"sub/__0_0.distcp", 2838, 0x9e8f7a6b},
                                         {".metadata", 966, 0x0a1b2c3d}};
  EXPECT_EQ(seal_text(files), kExample);
  EXPECT_EQ(seal_bytes({{"sub/__0_0.distcp", 2838, 0}, {".metadata", 966, 0}}), kExample.size());
}

TEST(Seal, reads_what_was_written) {
  const auto files = read_text(kExample);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].name, ".metadata");
  EXPECT_EQ(files[1].name, "sub/__0_0.distcp");
  EXPECT_EQ(files[1].bytes, 2838U);
  EXPECT_EQ(files[1].crc, 0x9e8f7a6bU);
  EXPECT_TRUE(read_text(seal_text({})).empty());
  const std::string odd = "sp ace \"quote\" \\ \t \xc3\xa9 \xe2\x80\xae";
  EXPECT_EQ(read_text(seal_text({{odd, 1, 2}}))[0].name, odd);
}

TEST(Seal, every_flipped_bit_and_every_cut_is_an_error) {
  const std::string text(kExample);
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string bad = text;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW(read_text(bad), Error) << bit;
  }
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_THROW(read_text(text.substr(0, length)), Error) << length;
  EXPECT_THROW(read_text(text + "\n"), Error);
}

// A text with the right checksum at its end.
std::string closed(std::string lines) {
  const std::string good = seal_text({});
  const std::string head = good.substr(0, good.find('\n') + 1);
  const std::string text = head + lines;
  const auto crc = [](std::string_view bytes) {
    std::uint32_t state = 0xFFFFFFFFU;
    for (const char byte : bytes) {
      state ^= static_cast<unsigned char>(byte);
      for (int i = 0; i < 8; ++i) state = (state >> 1U) ^ ((state & 1U) != 0 ? 0xEDB88320U : 0U);
    }
    return ~state;
  };
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc(text));
  return text + "],\"crc32\":\"" + digits + "\"}\n";
}

TEST(Seal, says_what_is_wrong_with_it) {
  const auto line = [](std::string_view name) {
    return "{\"name\":\"" + std::string(name) + "\",\"bytes\":1,\"crc32\":\"00000000\"}";
  };
  EXPECT_EQ(read_text(closed(line("a") + ",\n" + line("b") + "\n")).size(), 2U);
  const struct {
    std::string text;
    std::string_view message;
  } kCases[] = {
      {"", "does not begin like a file of this name"},
      {"{\"fsdp_seal\":2,\"files\":[\n],\"crc32\":\"00000000\"}\n", "is of version 2"},
      {"{\"fsdp_seal\":1,\"files\":[\n],\"crc32\":\"00000000\"}\n", "expected"},
      {closed(line("b") + ",\n" + line("a") + "\n"), "names must be sorted"},
      {closed(line("a") + ",\n" + line("a") + "\n"), "names must be sorted"},
      {closed(line("../a") + "\n"), "is not the name of a file in a folder"},
      {closed(line("/a") + "\n"), "is not the name of a file in a folder"},
      {closed(line("a//b") + "\n"), "is not the name of a file in a folder"},
      {closed(line("a/./b") + "\n"), "is not the name of a file in a folder"},
      {closed(line("") + "\n"), "is not the name of a file in a folder"},
      {closed(line("a\\u0000b") + "\n"), "is not the name of a file in a folder"},
      {closed(line("\\u0061") + "\n"), "is not in canonical form"},
      {closed(" " + line("a") + "\n"), "is not in canonical form"},
      {closed(line("a") + ",\n"), "not valid JSON"},
      {closed("[]\n"), "line 2: is an array, expected an object"},
      {closed("{}\n"), "has other members than name, bytes, crc32"},
      {closed("{\"name\":\"a\",\"bytes\":1}\n"), "has other members"},
      {closed("{\"name\":\"a\",\"bytes\":1,\"crc32\":\"00000000\",\"x\":1}\n"),
       "has other members"},
      {closed("{\"name\":\"a\",\"bytes\":-1,\"crc32\":\"00000000\"}\n"), "'bytes' is not a number"},
      {closed("{\"name\":\"a\",\"bytes\":1.0,\"crc32\":\"00000000\"}\n"),
       "'bytes' is not a number"},
      {closed("{\"name\":1,\"bytes\":1,\"crc32\":\"00000000\"}\n"), "'name' is not a string"},
      {closed("{\"name\":\"a\",\"bytes\":1,\"crc32\":\"0000000A\"}\n"),
       "eight lower-case hexadecimal digits"},
      {closed("{\"name\":\"a\",\"bytes\":1,\"crc32\":\"0\"}\n"),
       "eight lower-case hexadecimal digits"},
      {closed("{\"name\":\"a\",\"name\":\"a\",\"bytes\":1,\"crc32\":\"00000000\"}\n"), "line 2"},
      {closed("{\"name\":\"" + std::string(40000, 'a') + "\"}\n"), "line 2 has 400"},
      {closed(std::string(2000, '[') + "\n"), "line 2"},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.text.substr(0, 200));
    expect_error(ErrorCode::kSeal, one.message, [&] { read_text(one.text); });
  }
}

TEST(Seal, a_name_that_is_no_text_cannot_be_sealed) {
  expect_error(ErrorCode::kName, "is not UTF-8", [] { seal_text({{"a\xff", 1, 2}}); });
}

TEST(Seal, names_of_seals) {
  EXPECT_EQ(sidecar_name("full.pt"), "full.pt.fsdp_seal.json");
  EXPECT_TRUE(is_seal_name("fsdp_seal.json"));
  EXPECT_TRUE(is_seal_name("sub/fsdp_seal.json"));
  EXPECT_TRUE(is_seal_name("full.pt.fsdp_seal.json"));
  EXPECT_FALSE(is_seal_name("my_fsdp_seal.json"));
  EXPECT_FALSE(is_seal_name("seal.json"));
}

}  // namespace
}  // namespace fsdp::formats
