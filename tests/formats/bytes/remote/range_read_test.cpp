// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/range_read.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kContent = "0123456789";

HttpHead head_of(int status, std::vector<std::pair<std::string, std::string>> fields) {
  return {status, std::move(fields)};
}

class RangeRead : public ::testing::Test {
 protected:
  // The bytes from 2 to 5.
  RangeSink sink() { return RangeSink(patience_, file_, 2, out_); }
  std::string read() const { return {reinterpret_cast<const char*>(out_.data()), out_.size()}; }
  static std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }
  // What an answer with this head throws.
  void refused(ErrorCode code, std::string_view fragment, const HttpHead& head) {
    RangeSink to = sink();
    test::expect_error(code, fragment, [&] { to.begin(head); });
  }
  void contradicts(std::string_view fragment, const HttpHead& head) {
    RangeSink to = sink();
    try {
      to.begin(head);
      ADD_FAILURE() << fragment;
    } catch (const TransferError& error) {
      EXPECT_NE(std::string_view(error.what()).find(fragment), std::string_view::npos)
          << error.what();
      EXPECT_LT(error.tries(), 10U);
    }
  }

  Patience patience_{"u", {3, std::chrono::seconds(10), std::chrono::seconds(1)}};
  StoredFile file_{10, "v", 0};
  std::array<std::byte, 4> out_{};
};

TEST_F(RangeRead, GoesOnWhereAnAnswerBrokeOff) {
  RangeSink to = sink();
  EXPECT_EQ(to.range(), "bytes=2-5");
  to.begin(head_of(206, {{"content-range", "bytes 2-5/10"}, {"etag", "\"v\""}}));
  EXPECT_TRUE(to.take(bytes("23")));
  EXPECT_THROW(to.end(), TransferError);
  EXPECT_EQ(to.range(), "bytes=4-5");
  to.begin(head_of(206, {{"content-range", "bytes 4-5/*"}}));
  EXPECT_TRUE(to.take(bytes("45")));
  to.end();
  EXPECT_EQ(read(), "2345");
  // An answer that did not end is asked for its last byte.
  EXPECT_EQ(to.range(), "bytes=5-5");
}

TEST_F(RangeRead, TakesTheWholeForTheRange) {
  RangeSink to = sink();
  to.begin(head_of(200, {{"content-length", "10"}}));
  EXPECT_TRUE(to.take(bytes(kContent.substr(0, 1))));
  EXPECT_TRUE(to.take(bytes(kContent.substr(1, 3))));
  EXPECT_FALSE(to.take(bytes(kContent.substr(4))));
  EXPECT_EQ(read(), "2345");
}

TEST_F(RangeRead, TakesARangeThatIsCalledTheWhole) {
  RangeSink to = sink();
  to.begin(head_of(200, {{"content-length", "4"}, {"content-range", "bytes 2-5/10"}}));
  EXPECT_TRUE(to.take(bytes("2345")));
  to.end();
  EXPECT_EQ(read(), "2345");
}

TEST_F(RangeRead, RefusesMoreThanTheRange) {
  RangeSink to = sink();
  to.begin(head_of(206, {{"content-range", "bytes 2-5/10"}}));
  EXPECT_THROW(to.take(bytes("23456")), TransferError);
}

TEST_F(RangeRead, NoticesAnotherFile) {
  const std::string range = "bytes 2-5/10";
  refused(ErrorCode::kChanged, "u: changed while it was read: its ETag was 'v' and is 'w'",
          head_of(206, {{"content-range", range}, {"etag", "\"w\""}}));
  refused(ErrorCode::kChanged, "it had 10 bytes and has 11",
          head_of(206, {{"content-range", "bytes 2-5/11"}}));
  refused(ErrorCode::kChanged, "it had 10 bytes and has 9",
          head_of(200, {{"content-length", "9"}}));
  file_ = {10, "", 1445412480LL * 1'000'000'000 + 5};
  RangeSink same = sink();
  same.begin(head_of(206, {{"content-range", range},
                           {"last-modified", "Wed, 21 Oct 2015 07:28:00 GMT"},
                           {"etag", "\"w\""}}));
  refused(
      ErrorCode::kChanged, "it was written again at 'Wed, 21 Oct 2015 07:28:01 GMT'",
      head_of(206, {{"content-range", range}, {"last-modified", "Wed, 21 Oct 2015 07:28:01 GMT"}}));
}

TEST_F(RangeRead, ADateTellsWhereAnAnswerHasNoStrongETag) {
  const std::string range = "bytes 2-5/10";
  const std::string later = "Wed, 21 Oct 2015 07:28:01 GMT";
  file_.mtime_ns = 1445412480LL * 1'000'000'000;
  for (const char* etag : {"W/\"v\"", ""}) {
    refused(ErrorCode::kChanged, "it was written again at",
            head_of(206, {{"content-range", range}, {"last-modified", later}, {"etag", etag}}));
  }
  RangeSink same = sink();
  same.begin(head_of(206, {{"content-range", range}, {"last-modified", later}, {"etag", "\"v\""}}));
}

TEST_F(RangeRead, NoticesOtherRanges) {
  contradicts("answers bytes 2-5 with 'bytes 3-6/10'",
              head_of(206, {{"content-range", "bytes 3-6/10"}}));
  contradicts("answers bytes 2-5 with 'bytes 2-3/10'",
              head_of(206, {{"content-range", "bytes 2-3/10"}}));
  contradicts("Content-Range missing", head_of(206, {}));
  contradicts("Content-Range 'items 1'", head_of(206, {{"content-range", "items 1"}}));
  contradicts("answers a range with 203", head_of(203, {}));
}

TEST_F(RangeRead, RefusesWhatItCannotUse) {
  refused(ErrorCode::kUnsupported, "Content-Encoding 'gzip'",
          head_of(206, {{"content-range", "bytes 2-5/10"}, {"content-encoding", "gzip"}}));
  file_.bytes = 100U << 20U;
  RangeSink far(patience_, file_, 9U << 20U, out_);
  test::expect_error(ErrorCode::kUnsupported, "u: the server ignores Range",
                     [&] { far.begin(head_of(200, {})); });
}

TEST(ContentRead, TakesAllAndNoMore) {
  ContentSink sink("u", 10);
  sink.begin(head_of(200, {{"content-length", "3"}, {"etag", "\"v\""}}));
  EXPECT_TRUE(sink.take(std::as_bytes(std::span(kContent.substr(0, 3)))));
  sink.end();
  EXPECT_EQ(sink.content.file.version, "v");
  EXPECT_EQ(sink.content.bytes.size(), 3U);
  // What an earlier try brought is dropped.
  sink.begin(head_of(200, {{"content-length", "4"}}));
  EXPECT_TRUE(sink.take(std::as_bytes(std::span(kContent.substr(0, 3)))));
  EXPECT_THROW(sink.end(), TransferError);
  test::expect_error(ErrorCode::kLimitSize, "u: has 11 bytes, more than the 10 allowed here", [&] {
    sink.begin(head_of(200, {{"content-length", "11"}}));
  });
  sink.begin(head_of(200, {}));
  EXPECT_TRUE(sink.take(std::as_bytes(std::span(kContent))));
  test::expect_error(ErrorCode::kLimitSize, "more than the 10 bytes",
                     [&] { sink.take(std::as_bytes(std::span(kContent))); });
  EXPECT_THROW(sink.begin(head_of(206, {})), TransferError);
}

}  // namespace
}  // namespace fsdp::formats
