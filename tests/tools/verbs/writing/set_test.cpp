// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_edits.py compares results with PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

using SetTest = CliTest;

TEST_F(SetTest, values_of_a_folder_change_and_the_data_are_shared) {
  const CliResult result =
      run_cli({"set", golden_path(kFolder), path("o"), "step=0", "app.optim.param_groups.0.lr=1"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  app.optim.param_groups.0.lr: 0.01 -> 1.0\n"));
  EXPECT_THAT(result.out, HasSubstr("  step: 2 -> 0\n"));
  EXPECT_EQ(run_cli({"extract", path("o"), "step"}).out, "0\n");
  const CliResult diff = run_cli({"diff", golden_path(kFolder), path("o"), "--json"});
  EXPECT_EQ(formats::parse_json(diff.out).find("differences")->as_array()->size(), 2U);
}

TEST_F(SetTest, a_tensor_gets_one_number_and_the_rest_stays) {
  const std::string key = "app.model.blocks.0.scale";
  const CliResult result = run_cli({"set", golden_path(kFolder), path("o"), key + "=0.1"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(key + ": float32 [] -> 0.1\n"));
  EXPECT_THAT(result.out, HasSubstr("data files are written anew"));
  EXPECT_EQ(run_cli({"extract", path("o"), key}).out, "0.1\n");
  EXPECT_EQ(run_cli({"diff", golden_path(kFolder), path("o"), "--exclude", key}).status, 0);
  EXPECT_EQ(run_cli({"verify", path("o")}).status, 0);
}

TEST_F(SetTest, keys_of_another_checkpoint_take_the_places_of_keys) {
  ASSERT_EQ(run_cli({"consolidate", golden_path(kFolder), path("other.pt")}).status, 0);
  ASSERT_EQ(run_cli({"set", path("other.pt"), path("o.pt"), "step=9", "app.model.**.weight=2",
                     "--exclude", "app.optim.**"})
                .status,
            0);
  const std::vector<std::string> taken = {
      "set",    golden_path(kFolder), path("o"), "--take-from", path("o.pt"),
      "--take", "app.model.*.*",      "--take",  "step"};
  const CliResult refused = run_cli(taken);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[REKEY_COLLISION]"));
  EXPECT_THAT(refused.err, HasSubstr("--replace replaces it"));
  std::vector<std::string> replacing = taken;
  replacing.emplace_back("--replace");
  const CliResult result = run_cli(replacing);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  step: a value in place of a value\n"));
  EXPECT_THAT(result.out, HasSubstr("emb.weight: float32 [38, 26] in place of float32 [38, 26]"));
  EXPECT_EQ(run_cli({"extract", path("o"), "step"}).out, "9\n");
  EXPECT_EQ(run_cli({"diff", path("o"), path("o.pt"), "-k", "app.model.*.weight"}).status, 0);
  EXPECT_EQ(run_cli({"diff", path("o"), golden_path(kFolder), "-k", "app.optim.**"}).status, 0);
}

TEST_F(SetTest, a_folder_without_some_keys_shares_its_data) {
  const CliResult result =
      run_cli({"set", golden_path(kFolder), path("o"), "--drop", "app.optim.**", "step=4"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("dropped: "));
  EXPECT_THAT(result.out, HasSubstr("shared with the source"));
  EXPECT_EQ(run_cli({"diff", golden_path(kFolder), path("o"), "-k", "app.model.**"}).status, 0);
}

TEST_F(SetTest, json_has_old_and_new_values) {
  const CliResult result =
      run_cli({"set", golden_path(kFolder), path("o"), "step=7", "-n", "--json"});
  const formats::Json json = formats::parse_json(result.out);
  ASSERT_EQ(json.find("changes")->as_array()->size(), 1U);
  const formats::Json& change = json.find("changes")->as_array()->at(0);
  EXPECT_EQ(*change.find("key")->as_string(), "step");
  EXPECT_TRUE(change.find("tensor")->is_null());
  EXPECT_EQ(*change.find("was")->as_int(), 2);
  EXPECT_EQ(*change.find("now")->as_int(), 7);
  EXPECT_TRUE(names().empty());
}

TEST_F(SetTest, what_does_not_fit_is_refused_before_a_byte_is_written) {
  const auto refused = [&](const std::string& words, const std::string& says) {
    const CliResult result = run_cli({"set", golden_path(kFolder), path("o"), words});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_TRUE(names().empty());
  };
  refused("step=1.5", "error[TYPE]");
  refused("steps=1", "did you mean 'step'?");
  refused("step", "not of the form KEY=VALUE");
  refused("app.optim.param_groups.0.params=[]", "is a list");
  refused("app.model.steps_seen=-9223372036854775809", "cannot hold");
  refused("--drop=app.modl.**", "no key matches 'app.modl.**'");
  refused("--take=step", "--take needs --take-from");
  refused("--take-from=" + golden_path(kFolder), "--take-from needs --take");
  refused("--replace", "error[USAGE]");
}

}  // namespace
}  // namespace fsdp::cli
