// SPDX-License-Identifier: Apache-2.0
// The signatures are those that Amazon publishes as examples, and one that botocore 1.43 computed.
#include "formats/bytes/remote/sign.h"

#include <gtest/gtest.h>

#include "formats/bytes/http/encoding.h"
#include "formats/bytes/remote/digests.h"

namespace fsdp::formats {
namespace {

Credentials example() {
  return {"AKIAIOSFODNN7EXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), {}, 0};
}

std::string authorization(HttpRequest request, const std::string& url, const std::string& body,
                          const Credentials& credentials = example(),
                          const std::string& region = "us-east-1") {
  const Address address = *parse_address(url);
  sign(request, address, credentials, {region, "s3", sha256_text(body), 1369353600});
  for (const auto& [name, value] : request.fields) {
    if (name == "authorization") return value;
  }
  return "";
}

constexpr const char* kScope =
    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, ";

// "Examples: Signature Calculations" in "Authenticating Requests: Using the Authorization Header".
TEST(Sign, PublishedExamples) {
  const std::string host = "https://examplebucket.s3.amazonaws.com";
  EXPECT_EQ(authorization({"GET", {}, {{"range", "bytes=0-9"}}}, host + "/test.txt", ""),
            std::string(kScope) +
                "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
                "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(authorization({"PUT",
                           {},
                           {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                            {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                          host + "/" + encode_path("test$file.text"), "Welcome to Amazon S3."),
            std::string(kScope) +
                "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, "
                "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(authorization({}, host + "/?" + encode_query({{"lifecycle", ""}}), ""),
            std::string(kScope) +
                "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
                "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(authorization({}, host + "/?" + encode_query({{"prefix", "J"}, {"max-keys", "2"}}), ""),
            std::string(kScope) +
                "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
                "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Sign, OddCharactersAndAToken) {
  const Credentials credentials{"KEY.id+1_x~", Secret("s+e/c r=et%41&~\"'$:;\\"),
                                Secret("to/k+en=="), 0};
  const std::string url = "http://127.0.0.1:9000/b.c/" +
                          encode_path("a b+c=d*(e)'~!@$&,;:\xC3\xA9%41/x y") + "?" +
                          encode_query({{"uploadId", "a/b+c="}, {"partNumber", "3"}});
  EXPECT_EQ(authorization({"PUT", {}, {{"content-md5", "abc="}}}, url, "body", credentials,
                          "eu-central-1"),
            "AWS4-HMAC-SHA256 Credential=KEY.id+1_x~/20130524/eu-central-1/s3/aws4_request, "
            "SignedHeaders=content-md5;host;x-amz-content-sha256;x-amz-date;x-amz-security-token, "
            "Signature=f7246a835aafe283a165bfba5aef6c03f376b8aeb189b7ae3ac42d3538b342b7");
}

TEST(Sign, AddsTheFieldsThatItSigns) {
  HttpRequest request;
  sign(request, *parse_address("https://h/"), {"i", Secret("k"), Secret("t"), 0},
       {"r", "s3", kUnsignedPayload, 0});
  ASSERT_EQ(request.fields.size(), 4U);
  EXPECT_EQ(request.fields[0],
            (std::pair<std::string, std::string>("x-amz-content-sha256", "UNSIGNED-PAYLOAD")));
  EXPECT_EQ(request.fields[1].second, "19700101T000000Z");
  EXPECT_EQ(request.fields[2], (std::pair<std::string, std::string>("x-amz-security-token", "t")));
}

}  // namespace
}  // namespace fsdp::formats
