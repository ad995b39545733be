// SPDX-License-Identifier: Apache-2.0
// Weights of each rank as Transformers 5.24 saves them, beside the optimizer's folder.  The
// interop tests read what it writes itself (tests/interop/make_frameworks.py).
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

class Distributed : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    folder_ = path("saved");
    std::filesystem::create_directory(folder_);
    TinySafetensors weights;
    weights.count("0.weight", {4, 4});
    weights.write(folder_ + "/" + kShard);
    source_ = test::data_path("averages/schedule_free.pt").native();
  }

  // Writes the optimizer of a training state as a folder of two ranks.
  void save_optimizer(const std::string& inside) {
    const CliResult saved = run_cli({"convert", source_, folder_ + "/" + inside, "--to", "dcp",
                                     "--world-size", "2", "-k", "optimizer.**"});
    ASSERT_EQ(saved.status, 0) << saved.err;
  }

  static constexpr const char* kShard = "shard-00001-model-00001-of-00001.safetensors";
  std::string folder_;
  std::string source_;
};

TEST_F(Distributed, weights_and_optimizer_are_one_checkpoint) {
  save_optimizer("optimizer");
  const CliResult shown = run_cli({"inspect", folder_});
  EXPECT_THAT(shown.out, HasSubstr("Transformers' distributed checkpoint, 2 ranks, 3 files"));
  EXPECT_EQ(shown.err, "");
  EXPECT_EQ(run_cli({"verify", folder_}).status, 0);
  ASSERT_EQ(run_cli({"consolidate", folder_, path("full.pt")}).status, 0);
  EXPECT_EQ(run_cli({"diff", path("full.pt"), source_, "-k", "optimizer.**"}).status, 0);
  EXPECT_EQ(run_cli({"extract", path("full.pt"), "model.0.weight[0, 0:2]"}).out, "[0.0, 1.0]\n");
}

TEST_F(Distributed, the_optimizer_may_lie_in_the_same_folder) {
  save_optimizer("optimizer");
  for (const char* file : {".metadata", "__0_0.distcp", "__1_0.distcp"})
    std::filesystem::rename(folder_ + "/optimizer/" + file, folder_ + "/" + file);
  std::filesystem::remove(folder_ + "/optimizer");
  EXPECT_EQ(run_cli({"verify", folder_}).status, 0);
  ASSERT_EQ(run_cli({"consolidate", folder_, path("full.pt")}).status, 0);
  EXPECT_EQ(run_cli({"diff", path("full.pt"), source_, "-k", "optimizer.**"}).status, 0);
  EXPECT_EQ(run_cli({"extract", path("full.pt"), "model.0.weight[0, 0:2]"}).out, "[0.0, 1.0]\n");
}

TEST_F(Distributed, an_optimizer_that_is_not_whole_is_not_left_out) {
  save_optimizer("optimizer");
  std::filesystem::remove(folder_ + "/optimizer/.metadata");
  EXPECT_EQ(run_cli({"consolidate", folder_, path("full.pt")}).status, 2);
  EXPECT_EQ(run_cli({"verify", folder_}).status, 1);
}

TEST_F(Distributed, of_two_optimizers_none_is_taken) {
  save_optimizer("optimizer");
  save_optimizer("older");
  const CliResult shown = run_cli({"inspect", folder_});
  EXPECT_THAT(shown.out, HasSubstr("safetensors folder"));
  EXPECT_THAT(shown.err, HasSubstr("checkpoints inside that were not read: older, optimizer"));
}

TEST_F(Distributed, a_folder_that_is_more_than_an_optimizer_stays_apart) {
  ASSERT_EQ(run_cli({"convert", source_, folder_ + "/other", "--to", "dcp"}).status, 0);
  EXPECT_THAT(run_cli({"inspect", folder_}).err,
              HasSubstr("checkpoints inside that were not read: other"));
  // A whole checkpoint with the weights of another beside it.
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/other"))
    std::filesystem::rename(entry.path(), std::filesystem::path(folder_) / entry.path().filename());
  std::filesystem::remove(folder_ + "/other");
  EXPECT_EQ(run_cli({"diff", folder_, source_}).status, 0);
}

}  // namespace
}  // namespace fsdp::cli
