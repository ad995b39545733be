// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_vocabulary.py compares results with NumPy and PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

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
  refused({out, "--size", "40"}, "no key names an embedding");
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

}  // namespace
}  // namespace fsdp::cli
