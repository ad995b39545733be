// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/digests.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Digests, AreThoseOfTheStandards) {
  // RFC 4231, test cases 2 and 6 (a key longer than a block).
  EXPECT_EQ(hex_text(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex_text(hmac_sha256(std::string(131, '\xAA'),
                                 "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  // FIPS 180-2 and RFC 1321.
  EXPECT_EQ(sha256_text("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_text(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_text(md5(bytes_of("message digest"))), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(hex_text(md5({})), "d41d8cd98f00b204e9800998ecf8427e");
}

TEST(Digests, AreWrittenAsText) {
  EXPECT_EQ(hex_text(std::string("\x00\x7F\xFF", 3)), "007fff");
  // RFC 4648, 10.
  EXPECT_EQ(base64_text(""), "");
  EXPECT_EQ(base64_text("f"), "Zg==");
  EXPECT_EQ(base64_text("fo"), "Zm8=");
  EXPECT_EQ(base64_text("foo"), "Zm9v");
  EXPECT_EQ(base64_text("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64_text("\xFB\xFF\xBF"), "+/+/");
}

}  // namespace
}  // namespace fsdp::formats
