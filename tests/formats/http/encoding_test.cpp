// SPDX-License-Identifier: Apache-2.0
#include "formats/http/encoding.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(Encoding, EncodesAllButWhatIsUnreserved) {
  EXPECT_EQ(percent_encode("aZ09-._~"), "aZ09-._~");
  EXPECT_EQ(percent_encode(" /+=*()'!@$&,;:%\x7F\xC3\xA9"),
            "%20%2F%2B%3D%2A%28%29%27%21%40%24%26%2C%3B%3A%25%7F%C3%A9");
  EXPECT_EQ(encode_path("a b/c%2F"), "a%20b/c%252F");
  EXPECT_EQ(complete_path("a b/c%2F%zz%"), "a%20b/c%2F%25zz%25");
}

TEST(Encoding, Decodes) {
  EXPECT_EQ(percent_decode("a%20b+c%c3%A9", false), "a b+c\xC3\xA9");
  EXPECT_EQ(percent_decode("a+b", true), "a b");
  for (const char* wrong : {"%", "%2", "%2G", "a%"}) {
    EXPECT_EQ(percent_decode(wrong, false), std::nullopt) << wrong;
  }
}

TEST(Encoding, SortsTheQueryByItsEncodedNames) {
  EXPECT_EQ(encode_query({{"uploads", ""}, {"b", "2"}, {"a b", "x/y"}, {"a", "1"}}),
            "a=1&a%20b=x%2Fy&b=2&uploads=");
  EXPECT_EQ(encode_query({}), "");
}

}  // namespace
}  // namespace fsdp::formats
