// SPDX-License-Identifier: Apache-2.0
#include "formats/http/headers.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

HttpHead head_of(std::initializer_list<std::string_view> lines) {
  HttpHead head;
  for (const std::string_view line : lines) add_head_line(head, line);
  return head;
}

TEST(Headers, TakesTheLastHeadOfAnAnswer) {
  const HttpHead head =
      head_of({"HTTP/1.1 100 Continue\r\n", "X: interim\r\n", "\r\n", "HTTP/1.1 206 Partial\r\n",
               "Content-LENGTH:  12 \r\n", "no field\r\n", ": none\r\n", "X:first\r\n",
               "x: second\r\n", "\r\n"});
  EXPECT_EQ(head.status, 206);
  ASSERT_NE(head.find("content-length"), nullptr);
  EXPECT_EQ(*head.find("content-length"), "12");
  EXPECT_EQ(*head.find("x"), "first");
  EXPECT_EQ(head.fields.size(), 3U);
  EXPECT_EQ(head.find("y"), nullptr);
}

TEST(Headers, BoundsWhatItKeeps) {
  HttpHead head;
  add_head_line(head, "HTTP/1.1 200 OK");
  for (int i = 0; i < 1000; ++i) add_head_line(head, "X" + std::to_string(i) + ": y");
  EXPECT_EQ(head.fields.size(), 200U);
  HttpHead other;
  add_head_line(other, "X: " + std::string(1 << 20, 'x'));
  EXPECT_TRUE(other.fields.empty());
  for (const char* wrong : {"HTTP/1.1", "HTTP/1.1 2", "HTTP/1.1 abc", "HTTP/1.1 09x"}) {
    EXPECT_EQ(head_of({wrong}).status, 0) << wrong;
  }
}

TEST(Headers, KeepsStrongTagsAlone) {
  EXPECT_EQ(strong_etag("\"ab-1\""), "ab-1");
  EXPECT_EQ(strong_etag("ab-1"), "ab-1");
  for (const char* none : {"W/\"ab\"", "w/\"ab\"", "\"a\"b\"", "\"a b\"", "\"a\r\nX: y\"", ""}) {
    EXPECT_EQ(strong_etag(none), "") << none;
  }
}

TEST(Headers, ParsesRangesAndLengths) {
  const auto range = parse_content_range("bytes 5-104/10240");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5U);
  EXPECT_EQ(range->last, 104U);
  EXPECT_EQ(range->total, 10240U);
  EXPECT_EQ(parse_content_range("bytes 0-0/*")->total, std::nullopt);
  for (const char* wrong : {"bytes */5", "bytes 5-4/10", "bytes 0-10/10", "bytes 0-1", "0-1/2",
                            "bytes -1-2/3", "bytes 0-1/x", "bytes 0-99999999999999999999/*", ""}) {
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
  }
  EXPECT_EQ(parse_length("9223372036854775807"), 9223372036854775807U);
  for (const char* wrong : {"9223372036854775808", "-1", "+1", "1 ", "", "0x1", "1e3"}) {
    EXPECT_EQ(parse_length(wrong), std::nullopt) << wrong;
  }
}

TEST(Headers, DescribesTheFile) {
  const auto file = file_of_head(head_of({"HTTP/1.1 200 OK", "Content-Length: 7", "ETag: \"v\"",
                                          "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT"}));
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 7U);
  EXPECT_EQ(file->version, "v");
  EXPECT_EQ(file->mtime_ns, 1445412480LL * 1'000'000'000);
  const auto part = file_of_head(
      head_of({"HTTP/1.1 206 OK", "Content-Length: 1", "Content-Range: bytes 0-0/99"}));
  ASSERT_TRUE(part);
  EXPECT_EQ(part->bytes, 99U);
  EXPECT_EQ(part->version, "");
  EXPECT_FALSE(file_of_head(head_of({"HTTP/1.1 200 OK"})));
  EXPECT_FALSE(file_of_head(
      head_of({"HTTP/1.1 206 OK", "Content-Length: 1", "Content-Range: bytes 0-0/*"})));
}

}  // namespace
}  // namespace fsdp::formats
