// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/token_service.h"

#include <gtest/gtest.h>

#include "tests/formats/bytes/remote/known_credentials.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using test::Environment;
using test::expect_known;
using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;
using test::store_environment;

TEST(TokenService, WebIdentity) {
  const test::TempDir folder;
  test::write_file(folder / "token", "ey.J+/=\n");
  HttpServer server([](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.method, "POST");
    EXPECT_EQ(seen.field("content-type"), "application/x-www-form-urlencoded");
    EXPECT_EQ(seen.body,
              "Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"
              "RoleSessionName=s&"
              "Version=2011-06-15&WebIdentityToken=ey.J%2B%2F%3D");
    return HttpReply{
        200,
        {},
        "<AssumeRoleWithWebIdentityResponse "
        "xmlns='u'><AssumeRoleWithWebIdentityResult><Credentials>"
        "<SessionToken>token</SessionToken><SecretAccessKey>key</SecretAccessKey>"
        "<Expiration>2030-01-01T00:00:00Z</Expiration><AccessKeyId>id</AccessKeyId></Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"};
  });
  const Environment environment(
      store_environment({{"AWS_WEB_IDENTITY_TOKEN_FILE", (folder / "token").native()},
                         {"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"},
                         {"AWS_ROLE_SESSION_NAME", "s"},
                         {"AWS_ENDPOINT_URL_STS", server.url()}}));
  HttpClient client;
  expect_known(web_identity_credentials(client, Profile("p")));
  EXPECT_EQ(server.seen().size(), 1U);
  const Environment elsewhere("AWS_ENDPOINT_URL_STS", "http://sts.example.org");
  test::expect_error(ErrorCode::kUsage,
                     "which would expose the token; use https, or http on this machine",
                     [&] { web_identity_credentials(client, Profile("p")); });
  const Environment no_role("AWS_ROLE_ARN", "");
  test::expect_error(ErrorCode::kUsage, "AWS_ROLE_ARN is not set",
                     [&] { web_identity_credentials(client, Profile("p")); });
  const Environment no_file("AWS_WEB_IDENTITY_TOKEN_FILE", "");
  EXPECT_FALSE(web_identity_credentials(client, Profile("p")));
}

TEST(TokenService, WebIdentityThatIsRefused) {
  const test::TempDir folder;
  test::write_file(folder / "token", "secret-token");
  HttpServer server([](const HttpRequestSeen&) {
    return HttpReply{400,
                     {},
                     "<ErrorResponse><Error><Code>ExpiredTokenException</"
                     "Code><Message>secret-token</Message></Error></ErrorResponse>"};
  });
  const Environment environment(store_environment({{"AWS_ENDPOINT_URL", server.url()}}));
  Profile profile("p");
  profile.add(
      "[profile p]\nweb_identity_token_file = " + (folder / "token").native() + "\nrole_arn = r\n",
      true, "config");
  HttpClient client;
  try {
    web_identity_credentials(client, profile);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(code_name(error.code()), "ACCESS");
    EXPECT_EQ(std::string(error.what()),
              "the role of the web identity: the server refuses: 400 'ExpiredTokenException'");
  }
  test::write_file(folder / "token", "two\nlines");
  test::expect_error(ErrorCode::kUsage, "holds no token",
                     [&] { web_identity_credentials(client, profile); });
  std::filesystem::remove(folder / "token");
  test::expect_error(ErrorCode::kAccess, "the token file does not exist",
                     [&] { web_identity_credentials(client, profile); });
}

TEST(TokenService, RoleByOtherCredentials) {
  HttpServer server([](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.line, "POST / HTTP/1.1");
    EXPECT_EQ(seen.body,
              "Action=AssumeRole&DurationSeconds=900&ExternalId=a%2Fb&RoleArn=arn%3Arole&"
              "RoleSessionName=s&Version=2011-06-15");
    EXPECT_EQ(seen.field("x-amz-security-token"), "source-token");
    const std::string signature = seen.field("authorization");
    EXPECT_NE(signature.find("Credential=source-id/"), std::string::npos) << signature;
    EXPECT_NE(signature.find("/eu-west-3/sts/aws4_request, SignedHeaders=content-type;host;"),
              std::string::npos)
        << signature;
    return HttpReply{
        200,
        {},
        "<AssumeRoleResponse xmlns='u'><AssumeRoleResult><Credentials>"
        "<SessionToken>token</SessionToken><SecretAccessKey>key</SecretAccessKey>"
        "<Expiration>2030-01-01T00:00:00Z</Expiration><AccessKeyId>id</AccessKeyId></Credentials>"
        "</AssumeRoleResult></AssumeRoleResponse>"};
  });
  const Environment environment(store_environment({}));
  Profile endpoint("chosen");
  endpoint.add("[profile chosen]\nregion = eu-west-3\nendpoint_url = " + server.url() + "\n", true,
               "config");
  Profile profile("p");
  profile.add(
      "[profile p]\nrole_arn = arn:role\nrole_session_name = s\nexternal_id = a/b\n"
      "duration_seconds = 900\nregion = other\n",
      true, "config");
  HttpClient client;
  const Credentials source{"source-id", Secret("source-key"), Secret("source-token"), 0};
  expect_known(assume_role(client, endpoint, profile, source));
  EXPECT_EQ(server.seen().size(), 1U);
}

TEST(TokenService, RoleThatIsRefused) {
  HttpServer server([](const HttpRequestSeen& seen) {
    EXPECT_NE(seen.field("authorization").find("/us-east-1/sts/"), std::string::npos);
    EXPECT_EQ(seen.body.find("Action=AssumeRole&RoleArn=arn&RoleSessionName=fsdp-ckpt-"), 0U);
    return HttpReply{
        403, {}, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"};
  });
  const Environment environment(store_environment({{"AWS_ENDPOINT_URL_STS", server.url()}}));
  Profile profile("p");
  profile.add("[profile p]\nrole_arn = arn\n", true, "config");
  HttpClient client;
  test::expect_error(ErrorCode::kAccess,
                     "the role of profile 'p': the server refuses: 403 'AccessDenied'", [&] {
                       assume_role(client, profile, profile, {"id", Secret("k"), {}, 0});
                     });
}

}  // namespace
}  // namespace fsdp::formats
