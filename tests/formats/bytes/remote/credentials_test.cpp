// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/credentials.h"

#include <gtest/gtest.h>

#include "formats/bytes/http/times.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

Profile credentials_file(std::string_view text) {
  Profile profile("p");
  profile.add(text, false, "credentials");
  return profile;
}

constexpr std::string_view kKeys =
    "[p]\naws_access_key_id = id-p\naws_secret_access_key = key-p\naws_session_token = token-p\n";

TEST(Credentials, ComeFromTheEnvironmentFirst) {
  const test::Environment environment(test::store_environment({{"AWS_ACCESS_KEY_ID", "id-e"},
                                                               {"AWS_SECRET_ACCESS_KEY", "key-e"},
                                                               {"AWS_SESSION_TOKEN", "token-e"}}));
  HttpClient client;
  const Credentials found = amazon_credentials(client, credentials_file(kKeys));
  EXPECT_EQ(found.id, "id-e");
  EXPECT_EQ(found.key.reveal(), "key-e");
  EXPECT_EQ(found.token.reveal(), "token-e");
  EXPECT_EQ(found.expires, 0);
  const test::Environment anonymous("FSDP_CKPT_ANONYMOUS", "1");
  EXPECT_EQ(amazon_credentials(client, credentials_file(kKeys)).id, "");
}

TEST(Credentials, ComeFromTheProfile) {
  const test::Environment environment(test::store_environment({}));
  HttpClient client;
  const Credentials found = amazon_credentials(client, credentials_file(kKeys));
  EXPECT_EQ(found.id, "id-p");
  EXPECT_EQ(found.key.reveal(), "key-p");
  EXPECT_EQ(found.token.reveal(), "token-p");
}

// A role counts more than keys beside it.
TEST(Credentials, ComeFromTheRoleOfTheProfile) {
  test::HttpServer server([](const test::HttpRequestSeen&) {
    return test::HttpReply{200,
                           {},
                           "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>id-r"
                           "</AccessKeyId><SecretAccessKey>k</SecretAccessKey></Credentials>"
                           "</AssumeRoleResult></AssumeRoleResponse>"};
  });
  const test::TempDir folder;
  const std::string text = std::string(kKeys) + "role_arn = r\nsource_profile = p\n";
  test::write_file(folder / "credentials", text);
  const test::Environment environment(test::store_environment(
      {{"AWS_ENDPOINT_URL", server.url()},
       {"AWS_SHARED_CREDENTIALS_FILE", (folder / "credentials").native()}}));
  HttpClient client;
  EXPECT_EQ(amazon_credentials(client, credentials_file(text)).id, "id-r");
  EXPECT_EQ(server.seen().size(), 1U);
}

TEST(Credentials, HalvesAndOthersAreRefused) {
  const test::Environment environment(test::store_environment({{"AWS_ACCESS_KEY_ID", "id"}}));
  HttpClient client;
  test::expect_error(ErrorCode::kUsage,
                     "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not",
                     [&] { amazon_credentials(client, credentials_file("")); });
  const test::Environment none("AWS_ACCESS_KEY_ID", "");
  test::expect_error(
      ErrorCode::kUsage, "profile 'p': has aws_access_key_id, but no aws_secret_access_key",
      [&] { amazon_credentials(client, credentials_file("[p]\naws_access_key_id = x\n")); });
  test::expect_error(
      ErrorCode::kUnsupported, "profile 'p': credential_process would start a program",
      [&] { amazon_credentials(client, credentials_file("[p]\ncredential_process = /bin/x\n")); });
  test::expect_error(ErrorCode::kUnsupported, "sso_session needs a browser", [&] {
    amazon_credentials(client, credentials_file("[p]\nsso_session = x\n"));
  });
  test::expect_error(ErrorCode::kAccess, "no credentials: neither AWS_ACCESS_KEY_ID",
                     [&] { amazon_credentials(client, credentials_file("")); });
  const test::Environment wrong("FSDP_CKPT_ANONYMOUS", "yes");
  test::expect_error(ErrorCode::kUsage, "FSDP_CKPT_ANONYMOUS is 'yes' instead of '1' or '0'",
                     [&] { amazon_credentials(client, credentials_file("")); });
}

TEST(Credentials, OfGoogle) {
  const test::Environment environment(
      test::store_environment({{"GS_ACCESS_KEY_ID", "GOOG1"}, {"GS_SECRET_ACCESS_KEY", "k"}}));
  EXPECT_EQ(google_credentials().id, "GOOG1");
  const test::Environment none({{"GS_ACCESS_KEY_ID", ""}, {"GS_SECRET_ACCESS_KEY", ""}});
  test::expect_error(ErrorCode::kAccess, "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY",
                     [] { google_credentials(); });
}

TEST(Credentials, AreKeptUntilShortlyBeforeTheyExpire) {
  int asked = 0;
  std::int64_t lives = 3600;
  CredentialCache cache([&] {
    ++asked;
    return Credentials{"id" + std::to_string(asked), Secret("k"), Secret("t"),
                       wall_seconds() + lives};
  });
  EXPECT_EQ(cache.current().id, "id1");
  EXPECT_EQ(cache.current().id, "id1");
  cache.forget(Credentials{"another", {}, Secret("t"), 0});
  EXPECT_EQ(cache.current().id, "id1");
  lives = 60;
  cache.forget(cache.current());
  EXPECT_EQ(cache.current().id, "id2");
  EXPECT_EQ(cache.current().id, "id3");
}

}  // namespace
}  // namespace fsdp::formats
