// SPDX-License-Identifier: Apache-2.0
#include "formats/http/address.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

std::string parsed(std::string_view url) {
  const auto address = parse_address(url);
  return address ? address->text() : "none";
}

std::string led(std::string_view from, std::string_view location) {
  const auto to = redirected(*parse_address(from), location);
  return to ? to->text() : "none";
}

TEST(Address, TakesAUrlApart) {
  const auto address = parse_address("HTTPS://Example.ORG:8080/A%20b?c=D#e");
  ASSERT_TRUE(address);
  EXPECT_EQ(address->scheme, "https");
  EXPECT_EQ(address->authority, "example.org:8080");
  EXPECT_EQ(address->target, "/A%20b?c=D");
  EXPECT_EQ(parsed("http://[::1]:80"), "http://[::1]:80/");
  EXPECT_EQ(parsed("https://h?a"), "https://h/?a");
  // What could end a line of a request is encoded.
  EXPECT_EQ(parsed("https://h/a b\r\nc\xC3\xA9"), "https://h/a%20b%0D%0Ac%C3%A9");
}

TEST(Address, RefusesOthers) {
  for (const char* url : {"ftp://h/", "//h/", "h/a", "https:///a", "https://me:secret@h/a",
                          "https://h\r\nX: y/a", "https://a b/", ""}) {
    EXPECT_EQ(parsed(url), "none") << url;
  }
}

TEST(Address, FollowsRedirectsThatKeepWhatIsSecret) {
  EXPECT_EQ(led("https://h/a/b?c", "https://other/x?y"), "https://other/x?y");
  EXPECT_EQ(led("https://h/a/b?c", "//other/x"), "https://other/x");
  EXPECT_EQ(led("https://h/a/b?c", "/x"), "https://h/x");
  EXPECT_EQ(led("https://h/a/b?c", "x?u=http://q"), "https://h/a/x?u=http://q");
  EXPECT_EQ(led("http://h/a", "https://h/a"), "https://h/a");
  EXPECT_EQ(led("https://h/a", "http://h/a"), "none");
  EXPECT_EQ(led("https://h/a", "file:///etc/passwd"), "none");
  EXPECT_EQ(led("https://h/a", ""), "none");
}

TEST(Address, KnowsThisMachine) {
  for (const char* here :
       {"localhost", "localhost:80", "127.0.0.1:9", "127.1.2.3", "[::1]", "[::1]:8"}) {
    EXPECT_TRUE(is_loopback(here)) << here;
  }
  for (const char* other :
       {"localhost.example.org", "127.example.org", "10.0.0.1", "[::2]", "[::1]x", ""}) {
    EXPECT_FALSE(is_loopback(other)) << other;
  }
}

}  // namespace
}  // namespace fsdp::formats
