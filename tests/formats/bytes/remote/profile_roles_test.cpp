// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/profile_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using test::Environment;
using test::HttpReply;
using test::HttpRequestSeen;
using testing::ElementsAre;
using testing::HasSubstr;

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t at = text.find(begin);
  if (at == text.npos) return {};
  return text.substr(at + begin.size(), text.find(end, at + begin.size()) - at - begin.size());
}

// A token service that gives role "r" the id "id-of-r", and notes who asked for what.
class ProfileRolesTest : public ::testing::Test {
 protected:
  HttpReply answer(const HttpRequestSeen& seen) {
    const std::string role = between(seen.body, "RoleArn=", "&");
    asked_.push_back(between(seen.field("authorization"), "Credential=", "/") + " asks for " +
                     role);
    return {200,
            {},
            "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>id-of-" + role +
                "</AccessKeyId><SecretAccessKey>k</SecretAccessKey><SessionToken>t</SessionToken>"
                "</Credentials></AssumeRoleResult></AssumeRoleResponse>"};
  }
  std::optional<Credentials> role_of(const std::string& name, const std::string& config) {
    asked_.clear();
    test::write_file(folder_ / "config", config);
    HttpClient client;
    return role_credentials(client, read_profile(name));
  }
  void expect_refused(ErrorCode code, const std::string& words, const std::string& config) {
    test::expect_error(code, words, [&] { role_of("a", config); });
    EXPECT_THAT(asked_, ElementsAre());
  }

  std::vector<std::string> asked_;
  const test::TempDir folder_;
  test::HttpServer server_{[this](const HttpRequestSeen& seen) { return answer(seen); }};
  const Environment environment_{
      test::store_environment({{"AWS_ENDPOINT_URL_STS", server_.url()},
                               {"AWS_CONFIG_FILE", (folder_ / "config").native()}})};
};

const std::string kKeys = "aws_access_key_id = key-id\naws_secret_access_key = k\n";

TEST_F(ProfileRolesTest, ARoleIsTakenByTheKeysOfAnotherProfile) {
  const auto found =
      role_of("a", "[profile a]\nrole_arn = ra\nsource_profile = b\n[profile b]\n" + kKeys);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->id, "id-of-ra");
  EXPECT_EQ(found->token.reveal(), "t");
  EXPECT_THAT(asked_, ElementsAre("key-id asks for ra"));
  EXPECT_FALSE(role_of("b", "[profile b]\n" + kKeys));
  EXPECT_FALSE(role_of("a", "[profile a]\nrole_arn = ra\nweb_identity_token_file = /none\n"));
}

TEST_F(ProfileRolesTest, RolesAreTakenInAChain) {
  const auto found = role_of("a",
                             "[profile a]\nrole_arn = ra\nsource_profile = b\n"
                             "[profile b]\nrole_arn = rb\nsource_profile = c\n"
                             "[profile c]\nrole_arn = rc\nsource_profile = default\n[default]\n" +
                                 kKeys);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->id, "id-of-ra");
  EXPECT_THAT(asked_,
              ElementsAre("key-id asks for rc", "id-of-rc asks for rb", "id-of-rb asks for ra"));
}

TEST_F(ProfileRolesTest, AProfileWithKeysMayBeItsOwnSource) {
  ASSERT_TRUE(role_of("a", "[profile a]\nrole_arn = ra\nsource_profile = a\n" + kKeys));
  EXPECT_THAT(asked_, ElementsAre("key-id asks for ra"));
}

TEST_F(ProfileRolesTest, ChainsWithoutAnEndAreRefused) {
  expect_refused(ErrorCode::kUsage, "profile 'a': its source_profile 'a' leads back to it",
                 "[profile a]\nrole_arn = ra\nsource_profile = a\n");
  expect_refused(ErrorCode::kUsage, "profile 'c': its source_profile 'b' leads back to it",
                 "[profile a]\nrole_arn = ra\nsource_profile = b\n"
                 "[profile b]\nrole_arn = rb\nsource_profile = c\n"
                 "[profile c]\nrole_arn = rc\nsource_profile = b\n");
}

TEST_F(ProfileRolesTest, WhatMakesNoSenseIsRefused) {
  const std::string role = "[profile a]\nrole_arn = ra\n";
  expect_refused(ErrorCode::kUsage, "profile 'a': has role_arn, but neither source_profile nor",
                 role);
  expect_refused(ErrorCode::kUsage, "which exclude each other",
                 role + "source_profile = b\ncredential_source = Environment\n");
  expect_refused(ErrorCode::kUsage, "profile 'a': its source_profile 'b' does not exist",
                 role + "source_profile = b\n");
  expect_refused(ErrorCode::kAccess, "profile 'b': has no credentials",
                 role + "source_profile = b\n[profile b]\nregion = r\n");
  expect_refused(ErrorCode::kUnsupported, "profile 'b': credential_process would start a program",
                 role + "source_profile = b\n[profile b]\ncredential_process = x\n");
  expect_refused(ErrorCode::kUnsupported, "profile 'a': mfa_serial needs a code",
                 role + "source_profile = b\nmfa_serial = x\n[profile b]\n" + kKeys);
  expect_refused(ErrorCode::kUsage, "credential_source is 'Elsewhere' instead of 'Environment'",
                 role + "credential_source = Elsewhere\n");
  for (const char* duration : {"899", "43201", "an hour", "-1"}) {
    expect_refused(
        ErrorCode::kUsage, "instead of a number from 900 to 43200",
        role + "source_profile = b\nduration_seconds = " + duration + "\n[profile b]\n" + kKeys);
  }
}

TEST_F(ProfileRolesTest, ARoleIsTakenByTheEnvironmentAContainerOrTheMachine) {
  const std::string role = "[profile a]\nrole_arn = ra\ncredential_source = ";
  expect_refused(ErrorCode::kAccess, "credential_source Environment has no credentials",
                 role + "Environment\n");
  expect_refused(ErrorCode::kAccess, "credential_source EcsContainer has no credentials",
                 role + "EcsContainer\n");
  expect_refused(ErrorCode::kAccess, "credential_source Ec2InstanceMetadata has no credentials",
                 role + "Ec2InstanceMetadata\n");
  {
    const Environment keys(
        {{"AWS_ACCESS_KEY_ID", "of-environment"}, {"AWS_SECRET_ACCESS_KEY", "k"}});
    ASSERT_TRUE(role_of("a", role + "Environment\n"));
    EXPECT_THAT(asked_, ElementsAre("of-environment asks for ra"));
  }
  test::HttpServer service([](const HttpRequestSeen& seen) {
    if (seen.method == "PUT") return HttpReply{200, {}, "session"};
    if (seen.target.ends_with("/security-credentials/")) return HttpReply{200, {}, "role"};
    return HttpReply{200, {}, R"({"AccessKeyId": "of-service", "SecretAccessKey": "k"})"};
  });
  {
    const Environment container("AWS_CONTAINER_CREDENTIALS_FULL_URI", service.url() + "/c");
    ASSERT_TRUE(role_of("a", role + "EcsContainer\n"));
    EXPECT_THAT(asked_, ElementsAre("of-service asks for ra"));
  }
  const Environment machine(
      {{"AWS_EC2_METADATA_DISABLED", ""}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url()}});
  ASSERT_TRUE(role_of("a", role + "Ec2InstanceMetadata\n"));
  EXPECT_THAT(asked_, ElementsAre("of-service asks for ra"));
}

}  // namespace
}  // namespace fsdp::formats
