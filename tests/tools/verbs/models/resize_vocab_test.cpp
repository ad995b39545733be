// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_vocabulary.py compares results with NumPy and PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

class ResizeVocabTest : public CliTest {
 protected:
  CliResult resize(std::vector<std::string> words) {
    words.insert(words.begin(), {"resize-vocab", golden_path(kFolder)});
    return run_cli(words);
  }
};

TEST_F(ResizeVocabTest, tables_and_their_states_get_rows_and_the_rest_stays) {
  const CliResult result = resize({path("o"), "--to", "dcp", "-w", "3", "--size", "40", "--table",
                                   "app.model.emb.*", "--table", "app.model.head.weight"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("38 to 40 tokens:\n"));
  EXPECT_THAT(result.out, HasSubstr("  app.model.emb.weight: float32 [38, 26] -> [40, 26]\n"));
  EXPECT_THAT(result.out, HasSubstr("  app.optim.state.emb.weight.exp_avg: float32 [38, 26] -> "
                                    "[40, 26], a state: zeros\n"));
  EXPECT_EQ(run_cli({"verify", path("o")}).status, 0);
  const CliResult diff = run_cli({"diff", golden_path(kFolder), path("o"), "--json"});
  EXPECT_EQ(formats::parse_json(diff.out).find("differences")->as_array()->size(), 6U);
  EXPECT_EQ(run_cli({"extract", path("o"), "app.optim.state.emb.weight.exp_avg[38:40, 25]"}).out,
            "[0.0, 0.0]\n");
}

TEST_F(ResizeVocabTest, there_and_back_is_the_same) {
  for (const char* fill : {"mean", "zeros", "noise"}) {
    const CliResult larger = resize(
        {path("l.pt"), "--size", "5000", "--fill", fill, "--table", "app.model.emb.*", "--force"});
    EXPECT_EQ(larger.status, 0) << larger.err;
    const CliResult back = run_cli({"resize-vocab", path("l.pt"), path("b.pt"), "--size", "38",
                                    "--table", "app.model.emb.*", "--force"});
    EXPECT_EQ(back.status, 0) << back.err;
    EXPECT_EQ(run_cli({"diff", golden_path(kFolder), path("b.pt")}).status, 0);
  }
}

TEST_F(ResizeVocabTest, what_does_not_fit_is_refused_before_a_byte_is_written) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& says) {
    const CliResult result = resize(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_TRUE(names().empty());
  };
  const std::string out = path("o.pt");
  refused({out, "--size", "40"}, "no key has the name of an embedding");
  refused({out, "--size", "40", "--table", "app.model.em.weight"}, "did you mean");
  refused({out, "--size", "40", "--table", "app.optim.**"}, "no tensor of a model matches");
  refused({out, "--size", "40", "--table", "app.model.*.weight"}, "error[MISMATCH]");
  refused({out, "--size", "40", "--table", "app.model.steps_seen"}, "int64 [3]");
  refused({out, "--size", "0"}, "error[USAGE]");
  refused({out}, "--size");
  refused({out, "--size", "40", "--seed", "1"}, "--fill noise");
  refused({out, "--size", "40", "--fill", "noise", "--std", "0"}, "--std");
  refused({out, "--size", "40", "--fill", "ones"}, "error[USAGE]");
}

// A file of safetensors has the states of an optimizer under keys like all others, and no groups.
TEST_F(ResizeVocabTest, states_without_groups_are_refused_by_each_verb_that_changes_a_model) {
  const std::string flat = path("flat.safetensors");
  ASSERT_EQ(run_cli({"convert", golden_path(kFolder), flat, "--drop-values"}).status, 0);
  write_file(path("rules.toml"), "[rename]\n\"{rest:**}\" = \"{rest}\"\n");
  const std::vector<std::string> resize = {
      "resize-vocab", flat, path("o.safetensors"), "--size", "40", "--table", "app.model.emb.*"};
  for (std::vector<std::string> words : {resize,
                                         {"map", path("rules.toml"), flat, path("o.safetensors")},
                                         {"export", flat, path("o")}}) {
    const CliResult refused = run_cli(words);
    EXPECT_EQ(refused.status, 2) << words[0] << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("error[UNSUPPORTED]")) << words[0];
    EXPECT_THAT(refused.err,
                HasSubstr("' is a state of an optimizer whose param groups are missing"))
        << words[0];
    EXPECT_THAT(refused.err, HasSubstr("; leave it out with --exclude 'app.optim.**'\n"));
    words.insert(words.end(), {"--exclude", "app.optim.**"});
    EXPECT_EQ(run_cli(words).status, 0) << words[0];
    EXPECT_THAT(run_cli({"inspect", words[0] == "export" ? path("o") : path("o.safetensors")}).out,
                Not(HasSubstr("exp_avg")));
    std::filesystem::remove_all(path("o"));
    std::filesystem::remove_all(path("o.safetensors"));
  }
}

}  // namespace
}  // namespace fsdp::cli
