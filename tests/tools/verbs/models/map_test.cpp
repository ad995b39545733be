// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_map.py and check_maps.py compare results with PyTorch and
// the code that models come from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";
constexpr const char* kRules =
    "[parameters]\nrows = { config = \"vocab_size\" }\n"
    "[[rule]]\nfrom = \"blocks.{i:int}.scale\"\nto = \"scales\"\nover = \"i\"\ndo = [\"stack\"]\n"
    "[[rule]]\nfrom = \"emb.weight\"\nto = \"e\"\n"
    "do = [{ op = \"pad\", to = 40, from = \"rows\" }, \"transpose\"]\n"
    "[[rule]]\ndrop = \"steps_seen\"\nonly = \"forward\"\n"
    "[rename]\n\"{rest:**}\" = \"{rest}\"\n";

class MapTest : public CliTest {
 protected:
  void SetUp() override { write_file(path("r.toml"), kRules); }
  CliResult map(std::vector<std::string> more, const std::string& from = golden_path(kFolder)) {
    more.insert(more.begin(), {"map", path("r.toml"), from});
    return run_cli(more);
  }
};

TEST_F(MapTest, there_and_back_is_the_same_checkpoint) {
  const CliResult there = map({path("o.pt"), "--set", "rows=38"});
  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_THAT(there.out, HasSubstr("22 tensors -> 20 tensors with rows=38"));
  EXPECT_THAT(there.out, HasSubstr("dropped: 1 tensor\n  steps_seen [3]"));
  EXPECT_THAT(there.out, HasSubstr("moved along: 1 optimizer"));
  EXPECT_THAT(run_cli({"extract", path("o.pt"), "app.model.e", "--json"}).out, HasSubstr("26"));
  const CliResult back =
      map({path("back"), "--to", "dcp", "-w", "2", "--reverse", "--set", "rows=38"}, path("o.pt"));
  EXPECT_EQ(back.status, 0) << back.err;
  const CliResult diff =
      run_cli({"diff", path("back"), golden_path(kFolder), "--exclude", "**.steps_seen"});
  EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
}

TEST_F(MapTest, what_is_mapped_goes_to_the_ranks_of_any_folder) {
  EXPECT_EQ(map({path("o.pt"), "--set", "rows=38"}).status, 0);
  for (const char* format : {"dcp", "torch-checkpointing"}) {
    const CliResult result = map({path(format), "--to", format, "-w", "3", "--set", "rows=38",
                                  "--drop-optimizer", "-k", "app.model.**"});
    EXPECT_EQ(result.status, 0) << result.err;
    const CliResult diff = run_cli({"diff", path(format), path("o.pt"), "-k", "app.model.**"});
    EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
  }
}

TEST_F(MapTest, numbers_come_from_the_config) {
  write_file(path("config.json"), "{\"vocab_size\": 38, \"model_type\": \"llama\"}");
  EXPECT_EQ(map({path("o.pt"), "--config", path("config.json")}).status, 0);
  write_file(path("config.json"), "{\"vocab_size\": ");
  const CliResult broken = map({path("p.pt"), "--config", path("config.json")});
  EXPECT_EQ(broken.status, 2);
  EXPECT_THAT(broken.err, HasSubstr("error[JSON]"));
  EXPECT_THAT(broken.err, HasSubstr("config.json"));
}

TEST_F(MapTest, a_plan_lists_what_becomes_what) {
  const CliResult plan = map({path("o.pt"), "--set", "rows=38", "-n"});
  EXPECT_THAT(plan.out, HasSubstr("  emb.weight [38, 26] -> e [26, 40]  (pad, transpose)\n"));
  EXPECT_THAT(
      plan.out,
      HasSubstr(
          "blocks.0.scale [] + blocks.1.scale [] + blocks.2.scale [] -> scales [3]  (stack)"));
  const CliResult json =
      map({path("o.pt"), "--set", "rows=38", "-n", "--json", "--drop-optimizer"});
  const formats::Json root = formats::parse_json(json.out);
  EXPECT_EQ(*root.find("optimizers")->as_int(), 0);
  EXPECT_EQ(*root.find("dropped_optimizers")->as_int(), 1);
  EXPECT_EQ(*root.find("parameters")->find("rows")->as_int(), 38);
  EXPECT_EQ(root.find("steps")->as_array()->size(), 21U);
  EXPECT_EQ(names(), std::vector<std::string>{"r.toml"});
}

TEST_F(MapTest, what_does_not_fit_is_refused_before_a_byte_is_written) {
  const auto refused = [&](std::vector<std::string> more, const std::string& says) {
    more.insert(more.begin(), path("o.pt"));
    const CliResult result = map(std::move(more));
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_THAT(names(), Not(testing::Contains("o.pt")));
  };
  refused({},
          "parameter 'rows' has no value, which a config.json has as 'vocab_size'; give --set "
          "rows=NUMBER or "
          "the config with --config");
  refused({"--set", "rows=39"}, "error[SHAPE]");
  refused({"--set", "row=38"}, "did you mean rows?");
  refused({"--set", "rows=x"}, "is not NAME=NUMBER");
  refused({"--set", "rows=38", "--set", "rows=38"}, "--set gives 'rows' twice");
  refused({"--set", "rows=38", "--reverse"}, "error[REKEY_UNUSED]");
  refused({"--config", path("nowhere.json")}, "error[NOT_FOUND]");
}

TEST_F(MapTest, unknown_maps_have_a_nearest_name) {
  const CliResult result = run_cli({"map", "nanogpt-gpt", golden_path(kFolder), path("o.pt")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean nanogpt-gpt2?"));
  const CliResult other = run_cli({"map", "nanogpt-gpt2", golden_path(kFolder), path("o.pt")});
  EXPECT_THAT(other.err, HasSubstr("is a map for another architecture"));
}

TEST_F(MapTest, tensors_of_several_patterns_are_joined_and_divided_by_pattern) {
  write_file(path("r.toml"),
             "[[rule]]\nfrom = [\"blocks.{i}.ln.weight\", \"blocks.{i}.ln.bias\"]\nto = \"norms\"\n"
             "over = \"i\"\ndo = [\"stack\", { op = \"concatenate\", dim = 1 }]\n"
             "[rename]\n\"{rest:**}\" = \"{rest}\"\n");
  EXPECT_EQ(map({path("o.pt")}).status, 0);
  // Layers by rows; a row is the layer's weight and its bias.
  const std::string row = run_cli({"extract", path("o.pt"), "app.model.norms[1, 26:]"}).out;
  EXPECT_EQ(row, run_cli({"extract", golden_path(kFolder), "app.model.blocks.1.ln.bias"}).out);
  EXPECT_EQ(map({path("back.pt"), "--reverse"}, path("o.pt")).status, 0);
  const CliResult diff = run_cli({"diff", path("back.pt"), golden_path(kFolder), "-k",
                                  "app.model.**", "-k", "app.optim.state.**"});
  EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
  // What leaves fewer tensors than patterns is no such rule.
  write_file(path("r.toml"),
             "[[rule]]\nfrom = [\"blocks.{i}.ln.weight\", \"blocks.{i}.ln.bias\"]\nto = \"norms\"\n"
             "over = \"i\"\ndo = [\"untie\", \"stack\"]\n[rename]\n\"{rest:**}\" = \"{rest}\"\n");
  EXPECT_THAT(map({path("p.pt")}).err, HasSubstr("error[SHAPE]"));
}

using MapsTest = CliTest;

TEST_F(MapsTest, built_in_maps_are_listed_and_printed_as_rules) {
  const CliResult list = run_cli({"maps"});
  EXPECT_THAT(list.out, HasSubstr("torchtitan-llama3-hf"));
  const CliResult one = run_cli({"maps", "--show", "nanogpt-gpt2"});
  write_file(path("copy.toml"), one.out);
  // A printed map is a file of rules: here for another architecture.
  const CliResult used = run_cli({"map", path("copy.toml"), golden_path(kFolder), path("o.pt")});
  EXPECT_THAT(used.err, HasSubstr("is a map for another architecture"));
  const formats::Json json =
      formats::parse_json(run_cli({"maps", "--show", "nanogpt-gpt2", "--json"}).out);
  EXPECT_EQ(*json.find("rules")->as_string(), one.out);
  EXPECT_THAT(list.out, HasSubstr("\ntorchtitan 0.3\n  torchtitan-deepseek-v3-hf "));
  const formats::Json all = formats::parse_json(run_cli({"maps", "--json"}).out);
  std::size_t tried = 0;
  for (const formats::Json& map : *all.find("maps")->as_array())
    tried += map.find("versions")->as_array()->size();
  EXPECT_GT(tried, 25U);
  // A word chooses by name, model type, version or description, in capitals or not.
  EXPECT_EQ(run_cli({"maps", "NanoGPT"}).out,
            "of no version\n  nanogpt-gpt2  nanoGPT's GPT to transformers' GPT2LMHeadModel\n"
            "its rules: fsdp-ckpt maps --show nanogpt-gpt2\n");
  EXPECT_THAT(run_cli({"maps", "minimax_m2"}).out, HasSubstr("  transformers-mixtral-files "));
  EXPECT_THAT(run_cli({"maps", "minimax_m2"}).out, Not(HasSubstr("llama")));
  const formats::Json some = formats::parse_json(run_cli({"maps", "0.2", "--json"}).out);
  EXPECT_LT(some.find("maps")->as_array()->size(), all.find("maps")->as_array()->size() / 4);
  // Large groups are listed by names.
  EXPECT_THAT(list.out, HasSubstr("  transformers-mixtral-files"));
  EXPECT_THAT(list.out, Not(HasSubstr("mixtral, as trained")));
  EXPECT_EQ(run_cli({"maps", "no such word"}).status, 2);
  EXPECT_EQ(run_cli({"maps", "llama", "--show", "nanogpt-gpt2"}).status, 2);
  const CliResult unknown = run_cli({"maps", "--show", "nanogpt"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("error[NOT_FOUND]"));
}

}  // namespace
}  // namespace fsdp::cli
