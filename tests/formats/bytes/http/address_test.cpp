// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/address.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

std::string parsed(std::string_view url) {
  const auto address = parse_address(url);
  return address ? address->text() : "none";
}

TEST(Address, takes_a_url_apart) {
  const auto address = parse_address("HTTPS://Example.ORG:8080/A%20b?c=D#e");
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(address->scheme, "https");
  EXPECT_EQ(address->authority, "example.org:8080");
  EXPECT_EQ(address->target, "/A%20b?c=D");
  EXPECT_EQ(parsed("http://[::1]:80"), "http://[::1]:80/");
  EXPECT_EQ(parsed("http://h?q=/x"), "http://h/?q=/x");
}

TEST(Address, encodes_what_no_url_has) {
  EXPECT_EQ(parsed("http://h/a b\"<\xC3\xA4>"), "http://h/a%20b%22%3C%C3%A4%3E");
  EXPECT_EQ(parsed("http://h/a\r\nx: y"), "http://h/a%0D%0Ax:%20y");
  EXPECT_EQ(parsed(std::string_view("http://h/\0", 10)), "http://h/%00");
}

TEST(Address, refuses_other_schemes_names_and_passwords) {
  for (const char* url :
       {"", "h/a", "ftp://h/a", "file:///etc/passwd", "://h/a", "http://", "http:///a", "http:h/a",
        "http://user@h/a", "http://user:password@h/a", "https://h\\@other/a", "http://h h/a",
        "http://h%41/a", "http://h\r\n/a", "http://#h/a", " http://h/a", "javascript://h/a"}) {
    EXPECT_EQ(parsed(url), "none") << url;
  }
}

TEST(Address, a_redirect_leads_to_where_its_location_says) {
  const Address from = *parse_address("https://a.org/x/y?q=1/2");
  const auto to = [&](std::string_view location) {
    const auto address = redirected(from, location);
    return address ? address->text() : "none";
  };
  EXPECT_EQ(to("https://b.org/z"), "https://b.org/z");
  EXPECT_EQ(to("//b.org/z"), "https://b.org/z");
  EXPECT_EQ(to("/z?r#f"), "https://a.org/z?r");
  EXPECT_EQ(to("z"), "https://a.org/x/z");
  EXPECT_EQ(to("?r=http://b.org/"), "https://a.org/x/?r=http://b.org/");
  EXPECT_EQ(to("z?u=https://b.org/"), "https://a.org/x/z?u=https://b.org/");
  for (const char* location : {"", "http://a.org/z", "ftp://a.org/z", "file:///etc/passwd",
                               "https://user@b.org/", "//user@b.org/", "https://"}) {
    EXPECT_EQ(to(location), "none") << location;
  }
  const Address plain = *parse_address("http://a.org/x");
  EXPECT_EQ(redirected(plain, "https://a.org/x")->text(), "https://a.org/x");
}

TEST(Address, knows_this_machine) {
  for (const char* authority :
       {"localhost", "localhost:9000", "127.0.0.1", "127.255.0.1:80", "[::1]", "[::1]:9000"}) {
    EXPECT_TRUE(is_loopback(authority)) << authority;
  }
  for (const char* authority :
       {"", "example.org", "localhost.example.org", "127.0.0.1.example.org", "127.evil.org",
        "[::1].example.org", "[::2]", "10.127.0.1", "1127.0.0.1", "0.0.0.0", "notlocalhost"}) {
    EXPECT_FALSE(is_loopback(authority)) << authority;
  }
}

}  // namespace
}  // namespace fsdp::formats
