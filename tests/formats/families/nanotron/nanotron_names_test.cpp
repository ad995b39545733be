// SPDX-License-Identifier: Apache-2.0
#include "formats/families/nanotron/nanotron_names.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::nanotron {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

Metadata metadata(const std::string& shape, const std::string& pairs) {
  return {{"version", "1.5"}, {"unsharded_shape", shape}, {"local_global_slices_pairs", pairs}};
}

TEST(NanotronNames, a_file_of_a_whole_parameter) {
  const auto file = parameter_file("model_A_log.safetensors");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->name, "A_log");
  EXPECT_FALSE(file->rank);
}

TEST(NanotronNames, a_file_of_a_rank) {
  const auto file =
      parameter_file("model_weight_pp-rank-1-of-2_tp-rank-3-of-4_exp-rank-1-of-2.safetensors");
  ASSERT_TRUE(file && file->rank);
  EXPECT_EQ(file->name, "weight");
  EXPECT_EQ(file->rank->stage, 1);
  EXPECT_EQ(file->rank->number(), 7);
  EXPECT_EQ(file->rank->count(), 8);
  EXPECT_TRUE(parameter_file("model_weight_pp-rank-0-of-1_tp-rank-0-of-1.safetensors")->rank);
}

TEST(NanotronNames, other_files) {
  for (const char* name :
       {"weight.safetensors", "model_.safetensors", "model_weight.pt",
        "model_w_pp-rank-0-of-1.safetensors", "model_w_pp-rank-1-of-1_tp-rank-0-of-1.safetensors",
        "model_w_pp-rank-0-of-1_tp-rank--1-of-1.safetensors",
        "model_w_pp-rank-0-of-1_tp-rank-0-of-1_.safetensors",
        "model_w_pp-rank-0-of-1_tp-rank-0-of-9999999.safetensors"})
    EXPECT_FALSE(parameter_file(name)) << name;
}

TEST(NanotronNames, states_of_one_rank) {
  for (const char* name : {"optimizer_pp-0-of-1_tp-0-of-1_exp-0-of-1.pt", "lr_scheduler.pt",
                           "optimizer_pp-0-of-1_tp-0-of-1.pt"})
    EXPECT_TRUE(is_of_one_rank(name)) << name;
  for (const char* name :
       {"optimizer_pp-0-of-1_dp-0-of-1_tp-0-of-1_exp-0-of-1.pt",
        "optimizer_pp-0-of-2_tp-0-of-1_exp-0-of-1.pt", "optimizer_pp-0-of-1_tp-0-of-2.pt"})
    EXPECT_FALSE(is_of_one_rank(name)) << name;
}

TEST(NanotronNames, slices) {
  const std::vector<std::int64_t> local = {3, 4};
  const ShardSlices slices = shard_slices(
      metadata(
          "(np.int64(6), 4)",
          "0,2,None|None,None,None#2,4,None|None,None,None;2,3,1|None,None,None#5,6,None|0,4,1"),
      local);
  EXPECT_EQ(slices.version, "1.5");
  EXPECT_EQ(slices.shape, (std::vector<std::int64_t>{6, 4}));
  ASSERT_EQ(slices.pairs.size(), 2U);
  EXPECT_EQ(box_text(slices.pairs[0].first.view()), "[0:2, 0:4]");
  EXPECT_EQ(box_text(slices.pairs[0].second.view()), "[2:4, 0:4]");
  EXPECT_EQ(box_text(slices.pairs[1].second.view()), "[5:6, 0:4]");
  const std::vector<std::int64_t> flat = {3};
  EXPECT_EQ(shard_slices(metadata("(6,)", "None,None,None#3,6,None"), flat).shape.size(), 1U);
}

TEST(NanotronNames, slices_that_do_not_fit) {
  const std::vector<std::int64_t> local = {3};
  const std::string fits = "None,None,None#3,6,None";
  for (const char* shape : {"", "6", "(6", "(6,) ", "(-6,)", "(6 6)", "(6, 6)", "(np.int64(6,)"})
    test::expect_error(ErrorCode::kStMetadata, "",
                       [&] { shard_slices(metadata(shape, fits), local); });
  for (const char* pairs :
       {"", "None,None,None", "None,None,None#4,7,None", "None,None,None#3,5,None",
        "0,4,None#2,6,None", "0,3,2#3,6,2", "0,3#3,6", "3,0,None#6,3,None", "0,x,None#3,6,None",
        "None,None,None#3,6,None;", "None,None,None|None,None,None#3,6,None"})
    test::expect_error(ErrorCode::kStMetadata, "",
                       [&] { shard_slices(metadata("(6,)", pairs), local); });
  test::expect_error(ErrorCode::kStMetadata, "has no 'unsharded_shape'", [&] {
    shard_slices({{"version", "1.5"}}, local);
  });
}

}  // namespace
}  // namespace fsdp::formats::nanotron
