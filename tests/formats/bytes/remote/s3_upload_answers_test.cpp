// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "formats/bytes/remote/s3_answers.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

TEST(S3UploadAnswers, ReadsAndWritesWhatUploadsNeed) {
  EXPECT_EQ(
      parse_s3_upload_id(
          "<InitiateMultipartUploadResult xmlns='u'><Bucket>b</Bucket><UploadId>a+b/</UploadId>"
          "</InitiateMultipartUploadResult>"),
      "a+b/");
  EXPECT_EQ(parse_s3_upload_id(
                "<InitiateMultipartUpload><UploadId>7</UploadId></InitiateMultipartUpload>"),
            "7");
  test::expect_error(ErrorCode::kNetwork, "has no upload id",
                     [] { parse_s3_upload_id("<A><B>c</B></A>"); });
  EXPECT_EQ(s3_completion({"a", "b<&"}),
            "<CompleteMultipartUpload "
            "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Part><PartNumber>1</PartNumber>"
            "<ETag>&quot;a&quot;</ETag></Part><Part><PartNumber>2</"
            "PartNumber><ETag>&quot;b&lt;&amp;&quot;</ETag></Part>"
            "</CompleteMultipartUpload>");
}

TEST(S3UploadAnswers, ReadsUploadsThatWereBegun) {
  const auto begun = parse_s3_begun(
      "<ListMultipartUploadsResult xmlns='u'><Upload><Key>a%2Fb+c</Key><UploadId>1</UploadId>"
      "<Initiated>1970-01-01T00:00:02.500Z</Initiated></Upload><Upload><UploadId>2</UploadId>"
      "<Key>a</Key><Initiated>yesterday</Initiated></Upload><EncodingType>url</EncodingType>"
      "</ListMultipartUploadsResult>");
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_EQ(begun[0].key, "a/b c");
  EXPECT_EQ(begun[0].id, "1");
  EXPECT_EQ(begun[0].time_ns, 2'500'000'000);
  EXPECT_EQ(begun[1].key, "a");
  EXPECT_EQ(begun[1].time_ns, 0);
  EXPECT_EQ(parse_s3_begun("<ListMultipartUploadsResult><Upload><Key>a%2F+</Key></Upload>"
                           "</ListMultipartUploadsResult>")
                .at(0)
                .key,
            "a%2F+");
  EXPECT_TRUE(parse_s3_begun("<ListMultipartUploadsResult/>").empty());
  test::expect_error(ErrorCode::kNetwork, "not a list of uploads",
                     [] { parse_s3_begun("<ListBucketResult/>"); });
  test::expect_error(ErrorCode::kNetwork, "the list has a key '%zz'", [] {
    parse_s3_begun(
        "<ListMultipartUploadsResult><EncodingType>url</EncodingType><Upload><Key>%zz</Key>"
        "</Upload></ListMultipartUploadsResult>");
  });
}

TEST(S3UploadAnswers, CountsParts) {
  EXPECT_EQ(parse_s3_part_count("<ListPartsResult><Key>Part</Key></ListPartsResult>"), 0U);
  EXPECT_EQ(parse_s3_part_count("<ListPartsResponse><Part><ETag>a</ETag></Part><Part/>"
                                "</ListPartsResponse>"),
            2U);
  test::expect_error(ErrorCode::kNetwork, "not a list of parts",
                     [] { parse_s3_part_count("<Error><Part/></Error>"); });
}

}  // namespace
}  // namespace fsdp::formats
