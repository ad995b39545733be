// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/headers.h"

#include <initializer_list>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

HttpHead head_of(std::initializer_list<std::string_view> lines) {
  HttpHead head;
  for (const std::string_view line : lines) add_head_line(head, line);
  return head;
}

TEST(Headers, a_head_has_a_status_and_fields_in_their_order) {
  const HttpHead head = head_of({"HTTP/1.1 206 Partial Content\r\n", "ETag:\t \"a\"  \r\n",
                                 "CONTENT-length:5\n", "x: a: b", "\r\n"});
  EXPECT_EQ(head.status, 206);
  EXPECT_THAT(head.fields,
              ElementsAre(Pair("etag", "\"a\""), Pair("content-length", "5"), Pair("x", "a: b")));
  ASSERT_NE(head.find("etag"), nullptr);
  EXPECT_EQ(*head.find("etag"), "\"a\"");
  EXPECT_EQ(head.find("ETag"), nullptr);
}

TEST(Headers, a_new_head_takes_the_place_of_an_interim_one) {
  const HttpHead head = head_of({"HTTP/1.1 100 Continue", "link: x", "", "HTTP/2 200", "a: b"});
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.fields, ElementsAre(Pair("a", "b")));
}

TEST(Headers, a_line_of_status_without_three_digits_has_none) {
  for (const char* line :
       {"HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 20", "HTTP/1.1 2x0", "HTTP/1.1 -20", "HTTP/1.1 099",
        "HTTP/1.1 2000", "HTTP/1.1 +20", "HTTP/1.1  200", "HTTP/1.1 20 0", "HTTP/1.1\t200"}) {
    EXPECT_EQ(head_of({line}).status, 0) << line;
  }
  EXPECT_EQ(head_of({"HTTP/1.1 200"}).status, 200);
  EXPECT_EQ(head_of({"HTTP/1.1 999 ?"}).status, 999);
}

TEST(Headers, the_first_of_two_fields_counts) {
  const HttpHead head = head_of({"HTTP/1.1 200", "etag: \"a\"", "ETag: \"b\""});
  EXPECT_EQ(head.fields.size(), 2U);
  EXPECT_EQ(*head.find("etag"), "\"a\"");
}

TEST(Headers, a_line_that_goes_on_with_another_is_no_field) {
  const HttpHead head =
      head_of({"HTTP/1.1 200", "x-text: one,\r\n", " etag: \"forged\"\r\n", "\tcontent-length: 1"});
  EXPECT_THAT(head.fields, ElementsAre(Pair("x-text", "one,")));
}

TEST(Headers, lines_that_are_no_fields_are_left_out) {
  const HttpHead head = head_of({"HTTP/1.1 200", "", "\r\n", ":", ": value", "no colon",
                                 std::string_view("\0\x01\xFF", 3), "<html>"});
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.fields, IsEmpty());
}

TEST(Headers, what_exceeds_the_limits_is_left_out) {
  HttpHead head = head_of({"HTTP/1.1 200", "a: " + std::string(20'000, 'x'), "b: c"});
  EXPECT_THAT(head.fields, ElementsAre(Pair("b", "c")));
  for (int i = 0; i < 1000; ++i) add_head_line(head, "n" + std::to_string(i) + ": v");
  EXPECT_EQ(head.fields.size(), 200U);
  EXPECT_EQ(head.fields.back().first, "n198");
}

TEST(Headers, only_a_strong_etag_that_can_be_sent_back_is_one) {
  EXPECT_EQ(strong_etag("\"abc-2\""), "abc-2");
  EXPECT_EQ(strong_etag("abc"), "abc");
  EXPECT_EQ(strong_etag("\"!#~\""), "!#~");
  for (const std::string_view etag :
       {"W/\"abc\"", "w/\"abc\"", "", "\"\"", "\"a b\"", "\"a\tb\"", "a\"b", "\"a\"b\"", "\"",
        "\"a\r\nx: y\"", "\"\x7F\"", "\"\xC3\xA4\""}) {
    EXPECT_EQ(strong_etag(etag), "") << etag;
  }
  EXPECT_EQ(strong_etag(std::string_view("a\0b", 3)), "");
}

TEST(Headers, a_length_is_a_number_of_63_bits) {
  EXPECT_EQ(parse_length("0"), 0U);
  EXPECT_EQ(parse_length("9223372036854775807"), 9223372036854775807U);
  for (const char* text :
       {"", " ", "-1", "+1", " 1", "1 ", "1,1", "0x10", "1e3", "1.0", "9223372036854775808",
        "18446744073709551615", "18446744073709551616", "99999999999999999999999999"}) {
    EXPECT_EQ(parse_length(text), std::nullopt) << text;
  }
}

TEST(Headers, a_range_of_content_is_parsed) {
  const auto range = parse_content_range("bytes 5-9/1234");
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, 5U);
  EXPECT_EQ(range->last, 9U);
  EXPECT_EQ(range->total, 1234U);
  const auto open = parse_content_range("bytes 0-0/*");
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->total, std::nullopt);
  const auto most = parse_content_range("bytes 0-9223372036854775806/9223372036854775807");
  ASSERT_TRUE(most.has_value());
  EXPECT_EQ(most->last, 9223372036854775806U);
}

TEST(Headers, a_range_that_makes_no_sense_is_refused) {
  for (const char* text : {"",
                           "bytes",
                           "bytes ",
                           "bytes 5-9",
                           "bytes 5/9",
                           "bytes */1234",
                           "bytes 9-5/1234",
                           "bytes 5-9/9",
                           "bytes 5-9/",
                           "bytes 5-9/x",
                           "bytes -9/10",
                           "bytes 5-/10",
                           "bytes /5-9",
                           "bytes 5-9/10/11",
                           "bytes 5-9-10/11",
                           "bytes +5-9/10",
                           "bytes 5-9/-10",
                           "bytes 5 - 9/10",
                           "items 5-9/10",
                           "Bytes=5-9/10",
                           "bytes 0-18446744073709551615/18446744073709551616",
                           "bytes 0-9223372036854775807/9223372036854775808",
                           "bytes 18446744073709551616-5/10"}) {
    EXPECT_EQ(parse_content_range(text).has_value(), false) << text;
  }
}

TEST(Headers, a_head_tells_the_size_the_version_and_the_time_of_a_file) {
  const auto file = file_of_head(head_of({"HTTP/1.1 200", "content-length: 7", "etag: \"v1\"",
                                          "last-modified: Wed, 21 Oct 2015 07:28:00 GMT"}));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->bytes, 7U);
  EXPECT_EQ(file->version, "v1");
  EXPECT_EQ(file->mtime_ns, 1'445'412'480'000'000'000);
  const auto part =
      file_of_head(head_of({"HTTP/1.1 206", "content-length: 1", "content-range: bytes 0-0/9",
                            "etag: W/\"v1\"", "last-modified: yesterday"}));
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->bytes, 9U);
  EXPECT_EQ(part->version, "");
  EXPECT_EQ(part->mtime_ns, 0);
}

TEST(Headers, a_head_without_a_length_tells_of_no_file) {
  EXPECT_FALSE(file_of_head(head_of({"HTTP/1.1 200", "etag: \"v1\""})).has_value());
  EXPECT_FALSE(file_of_head(head_of({"HTTP/1.1 200", "content-length: -1"})).has_value());
  EXPECT_FALSE(
      file_of_head(head_of({"HTTP/1.1 206", "content-range: bytes 0-0/*", "content-length: 1"}))
          .has_value());
  EXPECT_FALSE(
      file_of_head(head_of({"HTTP/1.1 206", "content-range: nonsense", "content-length: 1"}))
          .has_value());
}

}  // namespace
}  // namespace fsdp::formats
