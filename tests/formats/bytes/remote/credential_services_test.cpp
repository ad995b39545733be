// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/credential_services.h"

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

constexpr const char* kAnswer =
    R"({"Code": "Success", "AccessKeyId": "id", "SecretAccessKey": "key", "Token": "token", "Expiration": "2030-01-01T00:00:00Z"})";

TEST(CredentialServices, Container) {
  const test::TempDir folder;
  test::write_file(folder / "token", "Bearer x\n");
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.field("authorization") != "Bearer x") return HttpReply{403};
    return seen.target == "/creds" ? HttpReply{200, {}, kAnswer}
                                   : HttpReply{200, {}, "{\"AccessKeyId\": \"only\"}"};
  });
  const Environment environment(
      store_environment({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/creds"},
                         {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", (folder / "token").native()}}));
  HttpClient client;
  expect_known(container_credentials(client));
  const Environment half("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/half");
  test::expect_error(ErrorCode::kAccess,
                     "the credentials of the container: the answer holds no credentials",
                     [&] { container_credentials(client); });
  const Environment other({{"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", ""},
                           {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer y"}});
  test::expect_error(ErrorCode::kAccess, "the server refuses: 403",
                     [&] { container_credentials(client); });
  const Environment elsewhere("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.0.0.1/creds");
  test::expect_error(ErrorCode::kUsage, "the service of the container is at 'http://10.0.0.1'",
                     [&] { container_credentials(client); });
  const Environment none("AWS_CONTAINER_CREDENTIALS_FULL_URI", "");
  EXPECT_FALSE(container_credentials(client));
}

TEST(CredentialServices, MachineByItsSecondVersionAlone) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.method == "PUT") {
      EXPECT_EQ(seen.target, "/latest/api/token");
      EXPECT_EQ(seen.field("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
      return HttpReply{200, {}, "session"};
    }
    if (seen.field("x-aws-ec2-metadata-token") != "session") return HttpReply{401};
    if (seen.target == "/latest/meta-data/iam/security-credentials/")
      return HttpReply{200, {}, "a role\n"};
    EXPECT_EQ(seen.target, "/latest/meta-data/iam/security-credentials/a%20role");
    return HttpReply{200, {}, kAnswer};
  });
  const Environment environment(store_environment(
      {{"AWS_EC2_METADATA_DISABLED", ""}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()}}));
  HttpClient client;
  expect_known(instance_credentials(client));
  EXPECT_EQ(server.seen().size(), 3U);
  const Environment disabled("AWS_EC2_METADATA_DISABLED", "true");
  EXPECT_FALSE(instance_credentials(client));
  EXPECT_EQ(server.seen().size(), 3U);
}

TEST(CredentialServices, NoMachineOfACloud) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.method == "PUT") return HttpReply{200, {}, "session"};
    return HttpReply{404};
  });
  const Environment environment(store_environment(
      {{"AWS_EC2_METADATA_DISABLED", ""}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()}}));
  HttpClient client;
  EXPECT_FALSE(instance_credentials(client));
  const Environment nobody("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1");
  EXPECT_FALSE(instance_credentials(client));
}

}  // namespace
}  // namespace fsdp::formats
