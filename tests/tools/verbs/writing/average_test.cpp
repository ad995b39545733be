// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_arithmetic.py compares results with NumPy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";
constexpr const char* kTied = "2.11.0/zip_pt/full.pt";

using AverageTest = CliTest;

TEST_F(AverageTest, the_mean_of_equal_checkpoints_is_that_checkpoint) {
  const std::string folder = golden_path(kFolder);
  const CliResult result = run_cli({"average", folder, folder, path("m.pt"), "--optimizer"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("mean of 2 checkpoints, in float32: 60 tensors from"));
  EXPECT_EQ(run_cli({"diff", folder, path("m.pt")}).status, 0);
}

TEST_F(AverageTest, words_are_checked) {
  const std::string folder = golden_path(kFolder);
  const auto refused = [&](std::vector<std::string> words, const std::string& says) {
    words.insert(words.begin(), "average");
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_TRUE(names().empty());
  };
  const std::string out = path("m.pt");
  refused({folder}, "error[USAGE]");
  refused({folder, out}, "needs at least two checkpoints, then OUT");
  refused({folder, folder, out, "--weights", "1"}, "1 number for 2 checkpoints");
  refused({folder, folder, out, "--weights", "1,nan"}, "not 'nan' as number 2");
  refused({folder, folder, out, "--weights", "1,"}, "not '' as number 2");
  refused({folder, folder, out, "--weights", "1,1e39"}, "too large for float32");
  refused({folder, folder, out, "--weights=1,-1", "--normalize"}, "add up to 0");
  refused({folder, folder, path("m")}, "does not name a format");
  refused({folder, folder, out, "-k", "nothing"}, "error[NOT_FOUND]");
  refused({folder, golden_path(kTied), out}, "error[MISMATCH]");
  refused({folder, path("nowhere"), out}, "error[NOT_FOUND]");
}

TEST_F(AverageTest, no_input_is_replaced) {
  const std::string a = copy_of(kTied, "a.pt");
  const std::string b = copy_of(kTied, "b.pt");
  const CliResult result = run_cli({"average", a, b, b, "--force"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[SAME_PATH]"));
  EXPECT_EQ(file_bytes(a), file_bytes(b));
}

TEST_F(AverageTest, a_dry_run_writes_nothing) {
  const std::string folder = golden_path(kFolder);
  const CliResult result = run_cli(
      {"average", folder, folder, folder, path("m.pt"), "-n", "--json", "--weights=2,0,-1"});
  EXPECT_EQ(result.status, 0) << result.err;
  const formats::Json json = formats::parse_json(result.out);
  EXPECT_EQ(json.find("inputs")->as_array()->size(), 3U);
  EXPECT_EQ(*json.find("summed")->as_int(), 22);
  EXPECT_EQ(*json.find("taken")->as_int(), 1);
  EXPECT_EQ(*json.find("left_out")->as_int(), 3 * 57);
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace fsdp::cli
