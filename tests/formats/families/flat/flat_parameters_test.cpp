// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/flat_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::flat {
namespace {

using testing::ElementsAre;

// A line of `count` elements of a storage of `numel`.
Value line(const std::string& storage, std::uint64_t numel, std::int64_t count) {
  return make_dense_tensor(DType::kFloat32, {count},
                           StorageRef{.key = storage, .dtype = DType::kFloat32, .numel = numel});
}

Leaf leaf(const std::string& name, const Value& value) {
  return {"model." + name, {std::string("model"), name}, value};
}

TEST(FlatParameters, names_lose_the_wrappers_around_modules) {
  EXPECT_EQ(without_wrappers("_fsdp_wrapped_module.a._checkpoint_wrapped_module.w"), "a.w");
  EXPECT_EQ(without_wrappers("_orig_mod.a.my_orig_mod.w"), "a.my_orig_mod.w");
  EXPECT_EQ(without_wrappers("a._fpw_module"), "a._fpw_module");
  EXPECT_TRUE(is_flat_key("a._flat_param"));
  EXPECT_TRUE(is_flat_key("flat_param"));
  EXPECT_FALSE(is_flat_key("a.flat_param_0"));
  EXPECT_FALSE(is_flat_key("a.my_flat_param"));
}

TEST(FlatParameters, parts_of_equal_length_follow_each_other_by_rank) {
  std::vector<RankLeaves> files = {
      {0,
       0,
       {leaf("b._fsdp_wrapped_module.flat_param", line("1", 3, 3)), leaf("seen", line("2", 3, 3))}},
      {1,
       1,
       {leaf("b._fsdp_wrapped_module.flat_param", line("1", 3, 3)),
        leaf("seen", line("2", 3, 3))}}};
  const std::vector<FlatModel> models = take_flat_parameters(files);
  ASSERT_EQ(models.size(), 1U);
  ASSERT_EQ(models[0].flats.size(), 1U);
  const FlatParameter& flat = models[0].flats[0];
  EXPECT_EQ(flat.module, "b");
  EXPECT_EQ(flat.size.numel, 6);
  EXPECT_EQ(flat.size.shard, 3);
  EXPECT_TRUE(flat.size.padded);
  ASSERT_EQ(flat.runs.size(), 2U);
  EXPECT_EQ(flat.runs[1].begin, 3);
  EXPECT_EQ(flat.runs[1].file, 1U);
  ASSERT_EQ(files[0].leaves.size(), 1U);
  EXPECT_EQ(files[0].leaves[0].key, "model.seen");
  EXPECT_EQ(models[0].flat_of("b.c.weight"), 0U);
  EXPECT_EQ(models[0].flat_of("bc.weight"), std::nullopt);
}

TEST(FlatParameters, a_shorter_last_part_has_no_padding) {
  std::vector<RankLeaves> files = {{0, 0, {leaf("_flat_param", line("1", 3, 3))}},
                                   {1, 1, {leaf("_flat_param", line("1", 2, 2))}},
                                   {2, 2, {leaf("_flat_param", line("1", 0, 0))}}};
  const FlatParameter flat = take_flat_parameters(files)[0].flats[0];
  EXPECT_EQ(flat.size.numel, 5);
  EXPECT_FALSE(flat.size.padded);
  std::vector<RankLeaves> odd = {{0, 0, {leaf("_flat_param", line("1", 2, 2))}},
                                 {1, 1, {leaf("_flat_param", line("1", 3, 3))}}};
  test::expect_error(ErrorCode::kShape, "has 3 elements on rank 1",
                     [&] { take_flat_parameters(odd); });
}

TEST(FlatParameters, views_of_the_same_storage_are_parts_of_parameters) {
  std::vector<RankLeaves> files = {
      {0,
       0,
       {leaf("a", line("1", 3, 3)), leaf("b", line("9", 0, 0)), leaf("none", line("8", 0, 0)),
        leaf("_flat_param", line("1", 3, 3))}},
      {1,
       1,
       {leaf("a", line("1", 3, 1)), leaf("b", line("1", 3, 3)), leaf("none", line("8", 0, 0)),
        leaf("_flat_param", line("1", 3, 3))}}};
  const std::vector<FlatModel> models = take_flat_parameters(files);
  ASSERT_EQ(models[0].named.size(), 2U);
  EXPECT_EQ(models[0].named[0].name, "a");
  EXPECT_EQ(models[0].named[0].in.at(0), (FlatRange{0, 3}));
  EXPECT_EQ(models[0].named[0].in.at(1), (FlatRange{3, 4}));
  EXPECT_EQ(models[0].named[1].in.at(0), (FlatRange{0, 0}));
  ASSERT_EQ(files[0].leaves.size(), 1U);  // an empty tensor on all ranks is one
  EXPECT_EQ(files[0].leaves[0].key, "model.none");
  ASSERT_EQ(models[0].members.size(), 4U);
  EXPECT_EQ(models[0].members[2].kind, FlatModel::Member::Kind::kOther);
  EXPECT_EQ(models[0].members[3].kind, FlatModel::Member::Kind::kFlat);
}

TEST(FlatParameters, ranks_must_agree_in_type) {
  const Value half = make_dense_tensor(
      DType::kFloat16, {3}, StorageRef{.key = "1", .dtype = DType::kFloat16, .numel = 3});
  std::vector<RankLeaves> files = {{0, 0, {leaf("_flat_param", line("1", 3, 3))}},
                                   {1, 1, {leaf("_flat_param", half)}}};
  test::expect_error(ErrorCode::kDtype, "is float16, in another rank's file float32",
                     [&] { take_flat_parameters(files); });
}

}  // namespace
}  // namespace fsdp::formats::flat
