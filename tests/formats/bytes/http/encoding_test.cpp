// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/encoding.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

std::string every_byte() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte) out += static_cast<char>(byte);
  return out;
}

TEST(Encoding, every_byte_but_the_unreserved_ones_is_escaped) {
  constexpr std::string_view kUnreserved =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const std::string encoded = percent_encode(text);
    if (kUnreserved.find(text) != std::string_view::npos) {
      EXPECT_EQ(encoded, text);
    } else {
      ASSERT_EQ(encoded.size(), 3U) << byte;
      EXPECT_EQ(encoded[0], '%');
      EXPECT_EQ(std::stoi(encoded.substr(1), nullptr, 16), byte);
    }
    EXPECT_EQ(encode_path(text), byte == '/' ? "/" : encoded);
  }
}

TEST(Encoding, spells_marks_as_signatures_need_them) {
  EXPECT_EQ(percent_encode(" =+*()!'/&?#%"), "%20%3D%2B%2A%28%29%21%27%2F%26%3F%23%25");
  EXPECT_EQ(percent_encode("\xC3\xA4\xE2\x82\xAC"), "%C3%A4%E2%82%AC");
  EXPECT_EQ(encode_path("a b/c=d/\xF0\x9F\x94\xA5"), "a%20b/c%3Dd/%F0%9F%94%A5");
  EXPECT_EQ(encode_path("%2F"), "%252F");
}

TEST(Encoding, a_completed_path_keeps_its_escapes) {
  EXPECT_EQ(complete_path("a%2Fb c"), "a%2Fb%20c");
  EXPECT_EQ(complete_path("100%"), "100%25");
  EXPECT_EQ(complete_path("%2"), "%252");
  EXPECT_EQ(complete_path("%zz%4a"), "%25zz%4a");
  EXPECT_EQ(complete_path("%%41"), "%25%41");
}

TEST(Encoding, decoding_is_the_inverse) {
  EXPECT_EQ(percent_decode(percent_encode(every_byte()), false), every_byte());
  EXPECT_EQ(percent_decode(percent_encode(every_byte()), true), every_byte());
  EXPECT_EQ(percent_decode("%c3%A4", false), "\xC3\xA4");
  EXPECT_EQ(percent_decode("a+b%2B", true), "a b+");
  EXPECT_EQ(percent_decode("a+b%2B", false), "a+b+");
  EXPECT_EQ(percent_decode("%00", false), std::string(1, '\0'));
}

TEST(Encoding, half_an_escape_is_refused) {
  for (const char* text : {"%", "a%", "%4", "a%4", "%4g", "%g4", "%%41", "% 41", "%-1", "%+1"}) {
    EXPECT_EQ(percent_decode(text, false), std::nullopt) << text;
    EXPECT_EQ(percent_decode(text, true), std::nullopt) << text;
  }
}

TEST(Encoding, a_query_is_sorted_by_its_encoded_names) {
  EXPECT_EQ(encode_query({}), "");
  EXPECT_EQ(encode_query({{"uploads", ""}}), "uploads=");
  EXPECT_EQ(encode_query({{"prefix", "a/b"}, {"list-type", "2"}, {"delimiter", "/"}}),
            "delimiter=%2F&list-type=2&prefix=a%2Fb");
  // "%C3" sorts before "A" and "~" behind "a", which their bytes unencoded would not.
  EXPECT_EQ(encode_query({{"~", "1"}, {"A", "2"}, {"\xC3\xA4", "3"}, {"a", "5"}, {"a", "4"}}),
            "%C3%A4=3&A=2&a=4&a=5&~=1");
}

}  // namespace
}  // namespace fsdp::formats
