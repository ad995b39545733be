// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_place.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

Profile config(std::string_view text) {
  Profile profile("default");
  profile.add(text, true, "config");
  return profile;
}

std::string where(const S3Settings& settings, const std::string& url, const Query& query = {}) {
  return s3_address(settings, settings.region, s3_place(url), query).text();
}

TEST(S3Place, TakesAUrlApart) {
  const S3Place place = s3_place("s3://my.bucket/a//b c/");
  EXPECT_EQ(place.bucket, "my.bucket");
  EXPECT_EQ(place.key, "a//b c/");
  EXPECT_EQ(s3_place("gs://b").key, "");
  for (const char* wrong :
       {"s3://", "s3:///a", "s3://..", "s3://a b/c", "s3://h:9/c", "s3://me@b/c"}) {
    test::expect_error(ErrorCode::kUsage, "does not name a bucket", [&] { s3_place(wrong); });
  }
  test::expect_error(ErrorCode::kUsage, "the key has 1025 bytes, but stores accept at most 1024",
                     [] { s3_place("s3://b/" + std::string(1025, 'k')); });
}

TEST(S3Place, NamesAmazonsHosts) {
  const test::Environment environment(test::store_environment({{"AWS_REGION", "eu-west-1"}}));
  const S3Settings settings = amazon_settings(config(""));
  EXPECT_EQ(where(settings, "s3://bkt/a b+c=%41/x"),
            "https://bkt.s3.eu-west-1.amazonaws.com/a%20b%2Bc%3D%2541/x");
  EXPECT_EQ(where(settings, "s3://b.k.t/a"), "https://s3.eu-west-1.amazonaws.com/b.k.t/a");
  EXPECT_EQ(where(settings, "s3://bkt", {{"list-type", "2"}}),
            "https://bkt.s3.eu-west-1.amazonaws.com/?list-type=2");
  EXPECT_EQ(s3_address(settings, "cn-north-1", {"bkt", "a"}, {}).text(),
            "https://bkt.s3.cn-north-1.amazonaws.com.cn/a");
}

TEST(S3Place, TakesEndpointsInTheirOrder) {
  const Profile profile = config("[default]\nendpoint_url = http://file:1\nregion = of-file\n");
  {
    const test::Environment environment(test::store_environment({}));
    EXPECT_EQ(where(amazon_settings(profile), "s3://bkt/a"), "http://file:1/bkt/a");
    EXPECT_EQ(amazon_settings(profile).region, "of-file");
  }
  const test::Environment environment(test::store_environment(
      {{"AWS_ENDPOINT_URL", "http://all:2/base/"}, {"AWS_DEFAULT_REGION", "d"}}));
  EXPECT_EQ(where(amazon_settings(profile), "s3://bkt/a"), "http://all:2/base/bkt/a");
  EXPECT_EQ(amazon_settings(profile).region, "d");
  const test::Environment special({{"AWS_ENDPOINT_URL_S3", "http://s3:3"}, {"AWS_REGION", "r"}});
  EXPECT_EQ(where(amazon_settings(profile), "s3://bkt"), "http://s3:3/bkt");
  EXPECT_EQ(amazon_settings(profile).region, "r");
  const test::Environment ignored("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
  EXPECT_EQ(where(amazon_settings(profile), "s3://bkt/a"), "https://bkt.s3.r.amazonaws.com/a");
}

TEST(S3Place, TakesTheStyleOfTheProfile) {
  const test::Environment environment(
      test::store_environment({{"AWS_ENDPOINT_URL", "http://h:2"}, {"AWS_REGION", "r"}}));
  EXPECT_EQ(where(amazon_settings(config("[default]\ns3 =\n addressing_style = virtual\n")),
                  "s3://bkt/a"),
            "http://bkt.h:2/a");
  const test::Environment amazon("AWS_ENDPOINT_URL", "");
  EXPECT_EQ(
      where(amazon_settings(config("[default]\ns3 =\n addressing_style = path\n")), "s3://bkt/a"),
      "https://s3.r.amazonaws.com/bkt/a");
}

TEST(S3Place, RefusesSettingsThatMakeNoSense) {
  const auto refused = [](const char* name, const char* value, std::string_view fragment) {
    const test::Environment environment(test::store_environment({{name, value}}));
    test::expect_error(ErrorCode::kUsage, fragment, [] { amazon_settings(config("")); });
  };
  refused("AWS_ENDPOINT_URL", "http://me:password@h",
          "AWS_ENDPOINT_URL is not an https or http URL");
  refused("AWS_ENDPOINT_URL_S3", "h:9000", "AWS_ENDPOINT_URL_S3 is not an https or http URL");
  refused("AWS_REGION", "a/b", "the region is 'a/b'");
  refused("FSDP_CKPT_REQUEST_PAYER", "me",
          "FSDP_CKPT_REQUEST_PAYER is 'me' instead of 'requester'");
}

TEST(S3Place, GoogleHasOneHost) {
  const test::Environment environment(test::store_environment({}));
  EXPECT_EQ(where(google_settings(), "gs://bkt/a"), "https://storage.googleapis.com/bkt/a");
  EXPECT_EQ(google_settings().region, "auto");
}

}  // namespace
}  // namespace fsdp::formats
