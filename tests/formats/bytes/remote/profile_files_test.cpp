// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/profile_files.h"

#include <sys/stat.h>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

Profile config(const std::string& name, std::string_view text) {
  Profile profile(name);
  profile.add(text, true, "config");
  return profile;
}

TEST(ProfileFiles, ReadsSections) {
  constexpr std::string_view kText = R"(
# a comment
[default]
region = us-west-2
[ profile   work ]
Region=eu-west-1	; a comment
aws_secret_access_key = a#b;c=d
s3 =
  addressing_style = path
  max_concurrent_requests = 20
output = json
[sso-session x]
region = other
)";
  const Profile work = config("work", kText);
  EXPECT_TRUE(work.exists());
  EXPECT_EQ(work.find("region"), "eu-west-1");
  EXPECT_EQ(work.secret("aws_secret_access_key").reveal(), "a#b;c=d");
  EXPECT_EQ(work.find("s3.addressing_style"), "path");
  EXPECT_EQ(work.find("output"), "json");
  EXPECT_EQ(work.find("none"), "");
  EXPECT_EQ(config("default", kText).find("region"), "us-west-2");
  EXPECT_FALSE(config("other", kText).exists());
  // Without "profile" a section of this file is nobody's.
  EXPECT_FALSE(config("work", "[work]\nregion = x\n").exists());
}

TEST(ProfileFiles, ReadsServices) {
  const Profile profile = config(
      "p",
      "[services mine]\ns3 =\n  endpoint_url = http://s3:9\nsts =\n  endpoint_url = http://sts\n"
      "[services other]\ns3 =\n  endpoint_url = http://other\n[profile p]\nservices = mine\n");
  EXPECT_EQ(profile.find("s3.endpoint_url"), "http://s3:9");
  EXPECT_EQ(profile.find("sts.endpoint_url"), "http://sts");
}

TEST(ProfileFiles, NamesTheLineAndShowsNothingOfIt) {
  try {
    config("p", "[profile p]\nregion = x\nAKIAwithoutaname\n");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "config: line 3 is neither \"[section]\" nor \"name = value\"");
  }
  test::expect_error(ErrorCode::kUsage, "line 1", [] { config("p", "region = x"); });
}

TEST(ProfileFiles, KeysOfTheFileOfCredentialsCountFirst) {
  const test::TempDir folder;
  test::write_file(folder / "config", "[profile p]\naws_access_key_id = of-config\nregion = r\n");
  test::write_file(folder / "credentials", "[p]\naws_access_key_id = of-credentials\n");
  const test::Environment environment(
      test::store_environment({{"AWS_CONFIG_FILE", (folder / "config").native()},
                               {"AWS_SHARED_CREDENTIALS_FILE", (folder / "credentials").native()},
                               {"AWS_PROFILE", "p"}}));
  const Profile profile = chosen_profile();
  EXPECT_EQ(profile.name(), "p");
  EXPECT_EQ(profile.find("aws_access_key_id"), "of-credentials");
  EXPECT_EQ(profile.find("region"), "r");
  const test::Environment other("AWS_PROFILE", "nobody");
  test::expect_error(ErrorCode::kUsage, "AWS_PROFILE is 'nobody', but neither",
                     [] { chosen_profile(); });
}

// Reading one would wait for somebody to write.
TEST(ProfileFiles, PipesAreRefused) {
  const test::TempDir folder;
  const std::string pipe = (folder / "pipe").native();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const test::Environment environment(
      test::store_environment({{"AWS_CONFIG_FILE", ""}, {"AWS_SHARED_CREDENTIALS_FILE", pipe}}));
  test::expect_error(ErrorCode::kNotRegular, "pipe: is not a regular file",
                     [] { chosen_profile(); });
}

TEST(ProfileFiles, LooksInTheHomeFolder) {
  const test::TempDir home;
  std::filesystem::create_directory(home / ".aws");
  test::write_file(home / ".aws/config", "[default]\nregion = from-home\n");
  const test::Environment environment(
      test::store_environment({{"HOME", home.path().native()},
                               {"AWS_CONFIG_FILE", ""},
                               {"AWS_SHARED_CREDENTIALS_FILE", ""}}));
  EXPECT_EQ(chosen_profile().find("region"), "from-home");
  const test::Environment nowhere("HOME", "/nonexistent");
  EXPECT_FALSE(chosen_profile().exists());
}

}  // namespace
}  // namespace fsdp::formats
