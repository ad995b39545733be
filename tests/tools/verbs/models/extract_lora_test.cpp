// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_lora.py compares results with torch.linalg.svd and peft.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kBaseFolder = "2.15.0/fsdp2/ckpt";

class ExtractLoraTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    const CliResult result = run_cli(
        {"merge-lora", base_, test::data_path("adapters/blocks").native(), tuned_, "--no-sync"});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  const std::string base_ = golden_path(kBaseFolder);
  const std::string tuned_ = path("tuned.pt");
};

TEST_F(ExtractLoraTest, what_was_merged_is_found_again) {
  const CliResult result = run_cli({"extract-lora", base_, tuned_, path("a"), "--rank", "4"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("blocks.0.up.weight  [79, 26]"),
                                HasSubstr("rank 4: 2 weights extracted, 21 tensors unchanged"),
                                HasSubstr("a: 4 tensors, 0 values")));
  EXPECT_TRUE(std::filesystem::exists(path("a/adapter_model.safetensors")));
  EXPECT_EQ(run_cli({"merge-lora", base_, path("a"), path("again.pt")}).status, 0);
  const CliResult diff = run_cli({"diff", tuned_, path("again.pt"), "--atol", "1e-6"});
  EXPECT_EQ(diff.status, 0) << diff.out;
  // A dry run tells the same and replaces nothing.
  const std::string before = file_bytes(path("a/adapter_model.safetensors"));
  const CliResult dry =
      run_cli({"extract-lora", base_, tuned_, path("a"), "--rank", "1", "--force", "-n"});
  EXPECT_THAT(dry.out, HasSubstr("rank 1: 2 weights extracted"));
  EXPECT_EQ(file_bytes(path("a/adapter_model.safetensors")), before);
}

TEST_F(ExtractLoraTest, bits_do_not_depend_on_threads_and_memory) {
  run_cli({"extract-lora", base_, tuned_, path("a"), "-r", "2", "--threads", "1"});
  run_cli({"extract-lora", base_, tuned_, path("b"), "-r", "2", "--threads", "5", "--max-memory",
           "24MiB"});
  EXPECT_EQ(file_bytes(path("a/adapter_model.safetensors")),
            file_bytes(path("b/adapter_model.safetensors")));
}

TEST_F(ExtractLoraTest, what_cannot_be_extracted_is_refused_before_a_byte_is_written) {
  const auto refused = [&](std::vector<std::string> words, const std::string& says) {
    words.insert(words.begin(), "extract-lora");
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_FALSE(std::filesystem::exists(path("o")));
  };
  const std::string out = path("o");
  refused({base_, tuned_, out}, "--rank");
  refused({base_, base_, out, "-r", "2"}, "no weight differs");
  refused({base_, golden_path("2.11.0/minimal/ckpt"), out, "-r", "2"}, "error[");
  refused({base_, tuned_, out, "-r", "27"}, "smaller side is less than a rank of 27");
  refused({base_, tuned_, out, "-r", "2", "--alpha", "0"}, "--alpha needs a positive float32");
  refused({base_, tuned_, out, "-r", "2", "--embedding", "["}, "error[USAGE]");
  refused({base_, tuned_, out, "-r", "2", "--dtype", "int8"}, "error[USAGE]");
  refused({base_, tuned_, out, "-r", "2", "--model", "nowhere"}, "holds no model's state dict at");
  refused({base_, tuned_, base_ + "/o", "-r", "2"}, "error[SAME_PATH]");
}

}  // namespace
}  // namespace fsdp::cli
