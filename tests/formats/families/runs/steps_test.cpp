// SPDX-License-Identifier: Apache-2.0
#include "formats/families/runs/steps.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/front/open.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::IsEmpty;

class StepsTest : public testing::Test {
 protected:
  // A name that ends in a slash becomes a folder of torch.distributed.checkpoint.
  void make(const std::string& name) const {
    const fs::path to = folder_ / name;
    const bool folder = name.ends_with('/');
    fs::create_directories(folder ? to : to.parent_path());
    fs::copy(
        test::data_path(folder ? "golden/2.11.0/minimal/ckpt" : "golden/2.11.0/zip_pt/full.pt"), to,
        fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  // Each step: "path" or "path: part, part".
  std::vector<std::string> steps(const std::string& below = "") const {
    std::vector<std::string> texts;
    for (const Step& step : look_through(folder_ / below).steps) {
      std::string text = step.path.lexically_relative(folder_.path());
      for (const std::string& part : step.parts)
        text += (part == step.parts.front() ? ": " : ", ") + part;
      texts.push_back(std::move(text));
    }
    return texts;
  }
  test::TempDir folder_;
};

TEST_F(StepsTest, a_step_with_parts_is_one_step) {
  for (const char* name : {"step_9/model/", "step_9/optimizer/", "step_10/model/",
                           "step_10/optimizer/", "step_10/train_dataloader.pt"})
    make(name);
  EXPECT_THAT(steps(), ElementsAre("step_9: model, optimizer",
                                   "step_10: model, optimizer, train_dataloader.pt"));
  EXPECT_TRUE(look_through(folder_ / "step_10").is_step);
  EXPECT_FALSE(look_through(folder_.path()).is_step);
  EXPECT_THAT(parts_of_step(folder_ / "step_9"), ElementsAre("model", "optimizer"));
  EXPECT_THAT(parts_of_step(folder_ / "step_9/model"), IsEmpty());
  EXPECT_THAT(parts_of_step(folder_.path()), IsEmpty());
}

TEST_F(StepsTest, parts_may_lie_deeper_and_be_numbered) {
  for (const char* name :
       {"results/step_30/policy/weights/", "results/step_30/policy/optimizer/",
        "results/step_30/rank/r1.pt", "results/step_30/rank/r2.pt", "logs/notes.pt.txt"})
    make(name);
  EXPECT_THAT(steps(), ElementsAre("results/step_30: policy/optimizer, policy/weights, "
                                   "rank/r1.pt, rank/r2.pt"));
}

// Nothing in the names is known; that they differ in one number alone is.
TEST_F(StepsTest, equal_names_with_other_numbers_are_steps) {
  for (const char* name : {"foo7/a/", "foo7/b/", "foo8/a/", "foo8/b/", "best/"}) make(name);
  EXPECT_THAT(steps(), ElementsAre("best", "foo7: a, b", "foo8: a, b"));
  EXPECT_THAT(parts_of_step(folder_ / "foo7"), ElementsAre("a", "b"));
}

TEST_F(StepsTest, ranks_are_no_steps) {
  for (const char* name : {"foo7/state/rank0.pt", "foo7/state/rank1.pt", "foo7/model/"}) make(name);
  EXPECT_THAT(steps(), ElementsAre("foo7: model, state/rank0.pt, state/rank1.pt"));
}

TEST_F(StepsTest, a_folder_of_models_is_a_collection) {
  for (const char* name : {"bert.pt", "llama.pt", "deep/t5/"}) make(name);
  EXPECT_THAT(steps(), ElementsAre("bert.pt", "deep/t5", "llama.pt"));
}

TEST_F(StepsTest, runs_lie_beside_each_other) {
  for (const char* name : {"exp1/step-100/", "exp2/step-50/", "exp2/step-60/"}) make(name);
  EXPECT_THAT(steps(), ElementsAre("exp1/step-100", "exp2/step-50", "exp2/step-60"));
}

TEST_F(StepsTest, all_parts_are_read_as_one_checkpoint) {
  for (const char* name : {"step_9/policy/weights/", "step_9/policy/optimizer/", "step_9/rng.pt"})
    make(name);
  const auto checkpoint = open_checkpoint(folder_ / "step_9");
  EXPECT_EQ(checkpoint->description().format, "step");
  const auto alone = open_checkpoint(folder_ / "step_9/policy/weights");
  for (const TensorEntry& tensor : alone->index().tensors) {
    for (const char* part : {"weights.", "optimizer."}) {
      const auto& tensors = checkpoint->index().tensors;
      EXPECT_TRUE(std::any_of(tensors.begin(), tensors.end(),
                              [&](const TensorEntry& one) {
                                return one.key == part + tensor.key && one.shape == tensor.shape;
                              }))
          << part << tensor.key;
    }
  }
  EXPECT_THAT(checkpoint->verify({}).findings, IsEmpty());
  EXPECT_THAT(unread_checkpoints(folder_ / "step_9", files_below(folder_ / "step_9", *checkpoint)),
              IsEmpty());
}

TEST_F(StepsTest, an_optimizer_without_a_model_is_damage) {
  make("checkpoint-2/optimizer_0/");
  make("checkpoint-2/scheduler.pt");
  const auto checkpoint = open_checkpoint(folder_ / "checkpoint-2");
  EXPECT_THAT(test::verified(*checkpoint),
              ElementsAre("SHARD_MISSING holds optimizer_0, scheduler.pt, but no model"));
}

TEST_F(StepsTest, checkpoints_that_a_layout_does_not_read_are_named) {
  make("step-1/");
  make("step-1/original/");
  make("step-1/extra.pt");
  make("step-1/training_args.bin");
  const auto checkpoint = open_checkpoint(folder_ / "step-1");
  EXPECT_THAT(unread_checkpoints(folder_ / "step-1", files_below(folder_ / "step-1", *checkpoint)),
              ElementsAre("extra.pt", "original"));
  // Also in a folder that the layout reads.
  make("step-2/pytorch_model_fsdp_0/");
  make("step-2/pytorch_model_fsdp_0/other/");
  const auto deep = open_checkpoint(folder_ / "step-2");
  EXPECT_EQ(deep->description().format, "accelerate");
  EXPECT_THAT(unread_checkpoints(folder_ / "step-2", files_below(folder_ / "step-2", *deep)),
              ElementsAre("pytorch_model_fsdp_0/other"));
}

TEST_F(StepsTest, too_many_files_are_an_error) {
  fs::create_directory(folder_ / "many");
  for (int i = 0; i <= 20'000; ++i) test::write_file(folder_ / ("many/" + std::to_string(i)), "");
  try {
    look_through(folder_.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLimitEntries);
  }
}

}  // namespace
}  // namespace fsdp::formats
