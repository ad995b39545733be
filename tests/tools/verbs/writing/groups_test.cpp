// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_groups.py lets PyTorch's optimizers load results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

using GroupsTest = CliTest;

TEST_F(GroupsTest, a_group_is_divided_and_joined_again) {
  const CliResult split = run_cli(
      {"groups", golden_path(kFolder), path("two"), "--split", "**.bias", "weight_decay=0"});
  EXPECT_EQ(split.status, 0) << split.err;
  EXPECT_THAT(split.out, HasSubstr("app.optim: 1 group became 2\n"));
  EXPECT_THAT(split.out, HasSubstr("shared with the source"));
  EXPECT_EQ(run_cli({"extract", path("two"), "app.optim.param_groups.1.weight_decay"}).out,
            "0.0\n");
  EXPECT_EQ(run_cli({"diff", golden_path(kFolder), path("two"), "-k", "app.optim.state.**"}).status,
            0);
  const CliResult join = run_cli({"groups", path("two"), path("one"), "--join", "0,1",
                                  "--options-of", "0", "--json", "--force"});
  EXPECT_EQ(join.status, 0) << join.err;
  const formats::Json json = formats::parse_json(join.out);
  const formats::Json& optimizer = json.find("optimizers")->as_array()->at(0);
  EXPECT_EQ(*optimizer.find("old_groups")->as_int(), 2);
  ASSERT_EQ(optimizer.find("groups")->as_array()->size(), 1U);
  EXPECT_EQ(optimizer.find("groups")->as_array()->at(0).find("parameters")->as_array()->size(),
            19U);
  EXPECT_EQ(run_cli({"diff", golden_path(kFolder), path("one"), "--exclude", "**.params"}).status,
            0);
}

TEST_F(GroupsTest, what_does_not_fit_is_refused_before_a_byte_is_written) {
  const auto refused = [&](std::vector<std::string> words, const std::string& says) {
    words.insert(words.begin(), {"groups", golden_path(kFolder), path("o")});
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_TRUE(names().empty());
  };
  refused({}, "give either --split GLOB or --join");
  refused({"--split", "blocks.0.up.bais"}, "did you mean 'blocks.0.up.bias'?");
  refused({"--split", "**"}, "nothing would change");
  refused({"--split", "**.bias", "lr=x"}, "error[TYPE]");
  refused({"--split", "**.bias", "rate=1"}, "has no option 'rate'");
  refused({"--join", "0,1"}, "there is no group 1");
  refused({"--join", "0"}, "two positions");
  refused({"--split", "**.bias", "-k", "app.model.**"}, "holds no optimizer state");
}

}  // namespace
}  // namespace fsdp::cli
