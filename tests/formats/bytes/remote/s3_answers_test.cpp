// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_answers.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

constexpr const char* kHead =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "
    "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";

TEST(S3Answers, ReadsAPage) {
  const S3Page page = parse_s3_page(
      std::string(kHead) +
          "<Contents><Key>runs/a%2Bb+c%C3%A9</Key><LastModified>2009-10-12T17:50:30.000Z</"
          "LastModified>"
          "<ETag>&quot;abc-2&quot;</ETag><Size>434234</Size><Owner><ID>1</ID></Owner></Contents>"
          "<Contents><Key>runs/</Key><Size>0</Size></Contents>"
          "<Contents><Key>runs/x/y</Key><Size>1</Size></Contents>"
          "<CommonPrefixes><Prefix>runs/step-1/</Prefix></CommonPrefixes>"
          "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
          "<NextContinuationToken>a/b=</NextContinuationToken></ListBucketResult>",
      "runs/");
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(page.entries[0].name, "a+b c\xC3\xA9");
  ASSERT_TRUE(page.entries[0].file);
  EXPECT_EQ(page.entries[0].file->bytes, 434234U);
  EXPECT_EQ(page.entries[0].file->version, "abc-2");
  EXPECT_EQ(page.entries[0].file->mtime_ns, 1255369830LL * 1'000'000'000);
  EXPECT_EQ(page.entries[1].name, "step-1");
  EXPECT_FALSE(page.entries[1].file);
  EXPECT_EQ(page.next, "a/b=");
}

TEST(S3Answers, RefusesPagesThatMakeNoSense) {
  const auto refused = [](const std::string& rest, std::string_view fragment) {
    test::expect_error(ErrorCode::kNetwork, fragment,
                       [&] { parse_s3_page(kHead + rest + "</ListBucketResult>", "runs/"); });
  };
  refused("<Contents><Key>other/a</Key><Size>1</Size></Contents>",
          "the list of 'runs/' has 'other/a'");
  refused("<Contents><Key>runs/a</Key><Size>-1</Size></Contents>", "the list has a size '-1'");
  refused("<EncodingType>url</EncodingType><Contents><Key>runs/%4</Key><Size>1</Size></Contents>",
          "the list has a key");
  refused("<IsTruncated>true</IsTruncated>", "no token for the next page");
  test::expect_error(ErrorCode::kNetwork, "not a list of files",
                     [] { parse_s3_page("<html><body/></html>", "runs/"); });
}

TEST(S3Answers, ReadsAPageOfEverythingBelow) {
  constexpr std::string_view kText =
      "<ListBucketResult><Contents><Key>runs/</Key><Size>0</Size></Contents>"
      "<Contents><Key>runs/a/.metadata</Key><Size>3</Size></Contents>"
      "<Contents><Key>runs/a/empty/</Key><Size>0</Size></Contents>"
      "<Contents><Key>runs/b</Key><Size>1</Size></Contents></ListBucketResult>";
  const S3Page page = parse_s3_page(kText, "runs/", true);
  ASSERT_EQ(page.entries.size(), 3U);
  EXPECT_EQ(page.entries[0].name, "a/.metadata");
  EXPECT_EQ(page.entries[0].file->bytes, 3U);
  EXPECT_EQ(page.entries[1].name, "a/empty");
  EXPECT_FALSE(page.entries[1].file);
  EXPECT_EQ(page.entries[2].name, "b");
  EXPECT_EQ(parse_s3_page(kText, "runs/").entries.size(), 1U);
}

TEST(S3Answers, ReadsRefusals) {
  const S3Refusal refusal = parse_s3_refusal(
      "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message><Region>eu-west-1</"
      "Region></Error>");
  EXPECT_EQ(refusal.code, "AuthorizationHeaderMalformed");
  EXPECT_EQ(refusal.message, "wrong");
  EXPECT_EQ(refusal.region, "eu-west-1");
  EXPECT_EQ(parse_s3_refusal("<html>503</html>").code, "");
  EXPECT_EQ(parse_s3_refusal("<Error><Code>SlowDown</Code><Mess").code, "SlowDown");
  HttpAnswer answer;
  answer.head.status = 400;
  answer.text = "<Error><Code>RequestTimeout</Code><Message>a\033[1mb</Message></Error>";
  EXPECT_TRUE(S3Dialect().passes(answer));
  answer.text = "<Error><Code>InvalidPart</Code><Message>a\nb</Message></Error>";
  EXPECT_FALSE(S3Dialect().passes(answer));
  EXPECT_EQ(S3Dialect().words(answer), "400 'InvalidPart': 'a\\x0ab'");
}

}  // namespace
}  // namespace fsdp::formats
