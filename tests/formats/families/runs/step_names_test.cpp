// SPDX-License-Identifier: Apache-2.0
#include "formats/families/runs/step_names.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(StepNames, a_name_tells_the_step) {
  EXPECT_EQ(step_of("run/step-400"), 400U);
  EXPECT_EQ(step_of("run/step-400/"), 400U);
  EXPECT_EQ(step_of("epoch=3-step=1200.ckpt"), 1200U);
  EXPECT_EQ(step_of("step1000_of_9"), 1000U);
  EXPECT_EQ(step_of("checkpoint_1000"), 1000U);
  EXPECT_EQ(step_of("epoch=3-val_loss=0.25.ckpt"), 3U);
  EXPECT_EQ(step_of("iteration_7_of_9"), 7U);
  EXPECT_EQ(step_of("Epoch_3"), 3U);
  EXPECT_EQ(step_of("ep1-ba20-rank0.pt"), 20U);
  EXPECT_EQ(step_of("00000250"), 250U);
  EXPECT_EQ(step_of("footsteps/7.pt"), 7U);
  EXPECT_EQ(step_of("step-400/last"), std::nullopt);
  EXPECT_EQ(step_of("model.safetensors"), std::nullopt);
  EXPECT_EQ(step_of("step-99999999999999999999999"), std::nullopt);
  EXPECT_EQ(step_of(""), std::nullopt);
}

TEST(StepNames, some_names_leave_no_doubt) {
  EXPECT_EQ(certain_step_of("epoch=3-step=1200.ckpt"), 1200U);
  EXPECT_EQ(certain_step_of("checkpoint_1000"), 1000U);
  EXPECT_EQ(certain_step_of("iter_0000500"), 500U);
  EXPECT_EQ(certain_step_of("v2-loss7"), std::nullopt);
  EXPECT_EQ(certain_step_of("last.ckpt"), std::nullopt);
  EXPECT_EQ(certain_step_of("step-99999999999999999999999"), std::nullopt);
}

TEST(StepNames, words_and_bare_numbers_say_that_a_name_is_one_of_many) {
  for (const char* name : {"step_20", "global_step500", "checkpoint-3", "epoch=1-step=2.ckpt",
                           "iter_0000007", "00000250", "ep0-ba4", "ckpt12.pt"})
    EXPECT_TRUE(tells_step(name)) << name;
  for (const char* name :
       {"model", "rank1.pt", "optimizer_0", "mp_rank_00", "v2-loss7", "7B", "version_3", "stepper"})
    EXPECT_FALSE(tells_step(name)) << name;
}

TEST(StepNames, numbers_of_processes_are_none_of_steps) {
  for (const char* name : {"rank1.pt", "mp_rank_00", "extra_rank_3.pt", "worker-2"})
    EXPECT_TRUE(tells_rank(name)) << name;
  for (const char* name : {"rank", "step_20", "frank_2_of_3", "model-7"})
    EXPECT_FALSE(tells_rank(name)) << name;
}

// Other numbers tell models, sizes and seeds apart.
TEST(StepNames, a_series_differs_in_the_numbers_of_its_steps_alone) {
  EXPECT_EQ(series_of("deep/step-0400"), "deep/step-#");
  EXPECT_EQ(series_of("deep/step-0400/"), "deep/step-#");
  EXPECT_EQ(series_of("epoch=1-step=20.ckpt"), "epoch=#-step=#.ckpt");
  EXPECT_EQ(series_of("epoch=1-val_loss=-0.25.ckpt"), "epoch=#-val_loss=-#.#.ckpt");
  EXPECT_EQ(series_of("exp1/step-100"), "exp1/step-#");
  EXPECT_EQ(series_of("model_7B_step100.pt"), "model_7B_step#.pt");
  EXPECT_EQ(series_of("seed1-step5"), "seed1-step#");
  EXPECT_EQ(series_of("model-7.pt"), "model-#.pt");
  EXPECT_EQ(series_of("v2-loss7.pt"), "v2-loss7.pt");
  EXPECT_EQ(series_of("last.ckpt"), "last.ckpt");
}

TEST(StepNames, parts_have_names_that_nothing_else_has) {
  for (const char* name : {"model", "optimizer.pt", "train_dataloader.pt", "policy/weights", "ema",
                           "model_and_optim", "training_state", "rng_state_0.pth", "lr_scheduler"})
    EXPECT_TRUE(is_part_name(name)) << name;
  for (const char* name : {"bert.pt", "my_model.pt", "step_20", "0", "llama-weights"})
    EXPECT_FALSE(is_part_name(name)) << name;
  EXPECT_TRUE(has_role("policy/weights", PartRole::kModel));
  EXPECT_TRUE(has_role("model_and_optim", PartRole::kOptimizer));
  EXPECT_FALSE(has_role("train_dataloader.pt", PartRole::kModel));
  EXPECT_FALSE(has_role("policy/optimizer", PartRole::kModel));
  EXPECT_EQ(without_part_names("run/model_step#.pt"), without_part_names("run/optim_step#.pt"));
  EXPECT_NE(without_part_names("run/7B_step#.pt"), without_part_names("run/13B_step#.pt"));
  EXPECT_EQ(without_numbers("rng_state_12.pth"), "rng_state_#.pth");
}

}  // namespace
}  // namespace fsdp::formats
