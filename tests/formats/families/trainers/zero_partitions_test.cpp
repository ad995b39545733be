// SPDX-License-Identifier: Apache-2.0

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/trainers/deepspeed_model.h"

namespace fsdp::formats::deepspeed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TensorValue flat(std::int64_t numel) {
  TensorValue tensor;
  tensor.shape = {numel};
  tensor.strides = {1};
  return tensor;
}
FlatGroups groups(std::uint32_t file, const std::vector<std::int64_t>& sizes) {
  FlatGroups out{file, {}};
  for (const std::int64_t size : sizes) out.tensors.push_back(flat(size));
  return out;
}
Parameter parameter(std::int64_t numel, std::int64_t begin, std::size_t group = 0) {
  return {"p", {numel}, numel, group, begin};
}
// "0:5 in 1 from 3": elements of the parameter, file, position in the flat tensor.
std::vector<std::string> texts(const std::vector<FlatRun>& runs) {
  std::vector<std::string> out;
  for (const FlatRun& run : runs) {
    std::ostringstream text;
    text << run.begin << ":" << run.end << " in " << run.file << " from " << run.from;
    out.push_back(text.str());
  }
  return out;
}

TEST(ZeroPartitions, a_group_is_cut_into_equal_partitions_whose_padding_may_be_missing) {
  // 10 elements on 3 ranks: partitions of 4, the last without its 2 of padding.
  const FlatGroupsByRank ranks = {{0, groups(0, {4})}, {1, groups(1, {4})}, {2, groups(2, {2})}};
  EXPECT_THAT(texts(runs_by_group(parameter(3, 0), ranks)), ElementsAre("0:3 in 0 from 0"));
  EXPECT_THAT(texts(runs_by_group(parameter(7, 3), ranks)),
              ElementsAre("0:1 in 0 from 3", "1:5 in 1 from 0", "5:7 in 2 from 0"));
}

TEST(ZeroPartitions, a_rank_that_is_missing_leaves_a_gap) {
  const FlatGroupsByRank ranks = {{0, groups(0, {4})}, {2, groups(2, {4})}};
  EXPECT_THAT(texts(runs_by_group(parameter(10, 1), ranks)),
              ElementsAre("0:3 in 0 from 1", "7:10 in 2 from 0"));
}

TEST(ZeroPartitions, groups_do_not_mix) {
  const FlatGroupsByRank ranks = {{0, groups(0, {4, 2})}, {1, groups(1, {4, 2})}};
  EXPECT_THAT(texts(runs_by_group(parameter(3, 1, 1), ranks)),
              ElementsAre("0:1 in 0 from 1", "1:3 in 1 from 0"));
  EXPECT_THAT(runs_by_group(parameter(3, 1, 2), ranks), IsEmpty());
}

TEST(ZeroPartitions, stage_3_cuts_each_parameter_and_pads_the_last_rank) {
  // 7 elements on 3 ranks: 3, 3 and 1; they begin at element 2 of every rank's groups.
  const FlatGroupsByRank ranks = {{0, groups(0, {9})}, {1, groups(1, {9})}, {2, groups(2, {9})}};
  EXPECT_THAT(texts(runs_by_parameter(parameter(7, 2), ranks, 3)),
              ElementsAre("0:3 in 0 from 2", "3:6 in 1 from 2", "6:7 in 2 from 2"));
  EXPECT_THAT(texts(runs_by_parameter(parameter(1, 0), ranks, 3)), ElementsAre("0:1 in 0 from 0"));
}

TEST(ZeroPartitions, stage_3_takes_the_groups_of_a_rank_as_one_run) {
  const FlatGroupsByRank ranks = {{0, groups(0, {3, 5})}, {1, groups(1, {3, 5})}};
  EXPECT_THAT(
      texts(runs_by_parameter(parameter(8, 1), ranks, 2)),
      ElementsAre("0:2 in 0 from 1", "2:4 in 0 from 0", "4:6 in 1 from 1", "6:8 in 1 from 0"));
}

TEST(ZeroPartitions, sizes_near_the_limit_do_not_overflow) {
  const std::int64_t huge = INT64_MAX;
  EXPECT_EQ(piece_numel(huge, 2), huge / 2 + 1);
  EXPECT_EQ(piece_begin(huge, piece_numel(huge, 2), 1'000'000), huge);
  EXPECT_EQ(piece_begin(5, 0, 3), 5);
  const FlatGroupsByRank ranks = {{0, groups(0, {4})}, {3, groups(3, {4})}};
  EXPECT_THAT(texts(runs_by_group(parameter(huge - 1, 2), ranks)),
              ElementsAre("0:2 in 0 from 2", "10:14 in 3 from 0"));
}

TEST(DeepSpeedNames, say_rank_and_kind) {
  const auto model = state_file("mp_rank_00_model_states.pt");
  ASSERT_TRUE(model);
  EXPECT_FALSE(model->optimizer || model->other || model->rank);
  const auto optimizer = state_file("bf16_zero_pp_rank_10_mp_rank_00_optim_states.pt");
  ASSERT_TRUE(optimizer);
  EXPECT_TRUE(optimizer->optimizer && !optimizer->other);
  EXPECT_EQ(optimizer->rank, 10);
  EXPECT_EQ(state_file("zero_pp_rank_3_mp_rank_02_model_states.pt")->model_rank, 2);
  EXPECT_TRUE(state_file("layer_01-model_00-model_states.pt")->other);
  EXPECT_TRUE(state_file("zero_pp_rank_x_mp_rank_00_optim_states.pt")->other);
  EXPECT_FALSE(state_file("model.pt"));
  EXPECT_FALSE(state_file("latest"));
}

}  // namespace
}  // namespace fsdp::formats::deepspeed
