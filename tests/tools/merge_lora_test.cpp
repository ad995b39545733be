// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_lora.py compares results with NumPy and peft.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

class MergeLoraTest : public CliTest {
 protected:
  const std::string base_ = golden_path(kFolder);
  const std::string adapter_ = test::data_path("adapters/blocks").native();
};

TEST_F(MergeLoraTest, two_weights_change_and_the_rest_stays) {
  const CliResult result = run_cli({"merge-lora", base_, adapter_, path("m.pt")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("merged 1 adapter: 2 weights with 2 updates, below 'app."));
  const CliResult diff = run_cli({"diff", base_, path("m.pt")});
  EXPECT_THAT(diff.out, HasSubstr("differ: 2 of 80 tensors"));
  // A folder of three ranks holds the same.
  EXPECT_EQ(run_cli({"merge-lora", base_, adapter_, path("m"), "--to", "dcp", "-w", "3"}).status,
            0);
  EXPECT_EQ(run_cli({"diff", path("m"), path("m.pt")}).status, 0);
}

TEST_F(MergeLoraTest, what_does_not_fit_is_refused_before_a_byte_is_written) {
  const auto refused = [&](std::vector<std::string> words, const std::string& says) {
    words.insert(words.begin(), "merge-lora");
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_TRUE(names().empty());
  };
  const std::string out = path("m.pt");
  refused({base_, adapter_}, "needs an adapter at least");
  refused({base_, base_, out}, "holds no adapter_config.json");
  refused({base_, path("nowhere"), out}, "error[NOT_FOUND]");
  refused({golden_path("2.11.0/minimal/ckpt"), adapter_, out}, "error[MISMATCH]");
  refused({base_, adapter_, out, "-k", "app.optim.**"}, "is of another base");
  refused({base_, adapter_, path("m")}, "names no format");
}

TEST_F(MergeLoraTest, a_damaged_adapter_is_refused) {
  std::filesystem::copy(adapter_, path("a"));
  const std::string tensors = path("a/adapter_model.safetensors");
  write_file(tensors, file_bytes(tensors).substr(0, 1500));
  EXPECT_EQ(run_cli({"merge-lora", base_, path("a"), path("m.pt")}).status, 2);
  std::filesystem::remove(tensors);
  EXPECT_THAT(run_cli({"merge-lora", base_, path("a"), path("m.pt")}).err,
              HasSubstr("neither adapter_model.safetensors nor"));
  EXPECT_FALSE(std::filesystem::exists(path("m.pt")));
}

}  // namespace
}  // namespace fsdp::cli
