// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/sharded_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/trainers/per_rank.h"
#include "formats/state/content/torch_globals.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;

using Numbers = std::vector<std::int64_t>;
constexpr Placement kReplicate{};
Placement shard(std::int64_t dim, std::int64_t factor = 1) {
  return {true, dim, factor};
}

std::string box(const Numbers& shape, const Numbers& mesh, const Numbers& at,
                const std::vector<Placement>& placements) {
  return box_text(placed_box(shape, mesh, at, placements).view());
}

TEST(PlacedBox, one_dimension_is_cut_by_chunks_rule) {
  EXPECT_EQ(box({7, 2}, {3}, {0}, {shard(0)}), "[0:3, 0:2]");
  EXPECT_EQ(box({7, 2}, {3}, {2}, {shard(0)}), "[6:7, 0:2]");
  EXPECT_EQ(box({1}, {4}, {3}, {shard(0)}), "[1:1]");
  EXPECT_EQ(box({4, 5}, {2}, {1}, {shard(1)}), "[0:4, 3:5]");
  EXPECT_EQ(box({0, 5}, {2}, {1}, {shard(0)}), "[0:0, 0:5]");
}

TEST(PlacedBox, mesh_dimensions_cut_from_left_to_right) {
  EXPECT_EQ(box({7, 5}, {2, 2}, {1, 1}, {shard(0), shard(1)}), "[4:7, 3:5]");
  EXPECT_EQ(box({7, 5}, {2, 2}, {1, 1}, {shard(0), shard(0)}), "[6:7, 0:5]");
  EXPECT_EQ(box({7, 5}, {2, 2}, {1, 0}, {kReplicate, shard(0)}), "[0:4, 0:5]");
}

TEST(PlacedBox, strided_shards_cut_what_the_right_left) {
  // 10 rows over data parallel 2 times tensor parallel 2: offsets 0, 5, 3, 8.
  const std::vector<Placement> placements = {shard(0, 2), shard(0)};
  EXPECT_EQ(box({10}, {2, 2}, {0, 0}, placements), "[0:3]");
  EXPECT_EQ(box({10}, {2, 2}, {0, 1}, placements), "[5:8]");
  EXPECT_EQ(box({10}, {2, 2}, {1, 0}, placements), "[3:5]");
  EXPECT_EQ(box({10}, {2, 2}, {1, 1}, placements), "[8:10]");
  test::expect_error(ErrorCode::kUnsupported, "split factor 3, expected 2", [&] {
    placed_box(Numbers{10}, Numbers{2, 2}, Numbers{0, 0},
               std::vector<Placement>{shard(0, 3), shard(0)});
  });
}

Value global(const std::string& module, const std::string& name) {
  return Value::global(module, name, static_cast<std::int32_t>(known_global(module, name)));
}
Value built(const Value& type, const Value& state) {
  ObjectData object;
  object.callable = type;
  object.args = Value::tuple({});
  object.by_new = true;
  object.built = true;
  object.state = state;
  return Value::object(std::move(object));
}
Value numbers(const Numbers& values) {
  std::vector<Value> items;
  for (const std::int64_t value : values) items.push_back(Value::integer(value));
  return Value::tuple(std::move(items));
}
Value text(const char* value) {
  return Value::string(value);
}

// A DTensor as PyTorch before 2.5 saved it: mesh with a tensor of ranks, the older module.
Value old_dtensor(const Value& local_tensor, const std::string& placement,
                  const Value& coordinate) {
  const std::string placements = "torch.distributed._tensor.placement_types";
  const Value mesh_tensor =
      make_dense_tensor(DType::kInt64, {2}, {.key = "1", .dtype = DType::kInt64, .numel = 2});
  const Value mesh =
      built(global("torch.distributed.device_mesh", "DeviceMesh"),
            Value::dict({{text("mesh"), mesh_tensor}, {text("_coordinate_on_dim"), coordinate}}));
  const Value how =
      built(global(placements, placement), Value::dict({{text("dim"), Value::integer(0)}}));
  const Value spec =
      built(global(placements, "DTensorSpec"),
            Value::dict({{text("mesh"), mesh}, {text("placements"), Value::tuple({how})}}));
  const Value type = global("torch.distributed._tensor.api", "DTensor");
  ObjectData call;
  call.callable = global("torch._tensor", "_rebuild_from_type_v2");
  call.args = Value::tuple(
      {global("torch._utils", "_rebuild_wrapper_subclass"), type,
       Value::tuple({type, global("torch", "float32"), numbers({7, 3}), numbers({3, 1}),
                     Value::integer(0), Value(), Value(), Value::boolean(false)}),
       Value::tuple({Value(), Value::dict({{text("_local_tensor"), local_tensor},
                                           {text("_spec"), spec}})})});
  return Value::object(std::move(call));
}

Value old_dtensor(const Numbers& local, const std::string& placement, const Value& coordinate) {
  std::uint64_t numel = 1;
  for (const std::int64_t size : local) numel *= static_cast<std::uint64_t>(size);
  return old_dtensor(make_dense_tensor(DType::kFloat32, local,
                                       {.key = "0", .dtype = DType::kFloat32, .numel = numel}),
                     placement, coordinate);
}

TEST(ShardedValue, a_librarys_tensor_in_it_is_no_damage) {
  const Value cls = global("torchao.optim.subclass_8bit", "OptimState8bit");
  ObjectData local;
  local.callable = global("torch._utils", "_rebuild_wrapper_subclass");
  local.args = Value::tuple({cls, global("torch", "float32"), numbers({3, 3})});
  const Value value =
      old_dtensor(Value::object(std::move(local)), "Shard", Value::list({Value::integer(1)}));
  test::expect_error(ErrorCode::kUnsupported,
                     "the rank's part is a torchao.optim.subclass_8bit.OptimState8bit",
                     [&] { sharded_value(value); });
}

TEST(ShardedValue, reads_what_pytorch_before_2_5_saved) {
  const auto value = sharded_value(old_dtensor({3, 3}, "Shard", Value::list({Value::integer(1)})));
  ASSERT_TRUE(value);
  EXPECT_EQ(value->shape, (Numbers{7, 3}));
  EXPECT_EQ(value->dtype, DType::kFloat32);
  EXPECT_EQ(value->ranks, 2);
  ASSERT_EQ(value->locals.size(), 1U);
  EXPECT_EQ(box_text(value->locals[0].box.view()), "[4:7, 0:3]");
}

TEST(ShardedValue, a_rank_outside_the_mesh_holds_nothing) {
  const auto value = sharded_value(old_dtensor({3, 3}, "Shard", Value()));
  ASSERT_TRUE(value);
  EXPECT_TRUE(value->locals.empty());
}

TEST(ShardedValue, what_does_not_fit_is_refused) {
  const Value first = Value::list({Value::integer(0)});
  test::expect_error(ErrorCode::kShape, "holds shape [3, 3], expected [4, 3]", [&] {
    sharded_value(old_dtensor({3, 3}, "Shard", first));
  });
  test::expect_error(ErrorCode::kUnsupported, "placement 'Partial'", [&] {
    sharded_value(old_dtensor({4, 3}, "Partial", first));
  });
  test::expect_error(ErrorCode::kBounds, "outside its bounds", [&] {
    sharded_value(old_dtensor({4, 3}, "Shard", Value::list({Value::integer(2)})));
  });
  test::expect_error(ErrorCode::kMetaType, "does not say where the rank stands", [&] {
    sharded_value(old_dtensor({4, 3}, "Shard", Value::list({})));
  });
  EXPECT_FALSE(sharded_value(Value::integer(1)));
}

TEST(RankFiles, names_differ_in_the_rank_alone) {
  const auto sets = rank_files({"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
                                "rank10.pth", "rank2.pth", "checkpoint_3.pt", "epoch_3.pt",
                                "rng_state.pth", "x-rank1.bin", "rank.pt", "a_rank7.txt"});
  ASSERT_EQ(sets.size(), 4U);
  EXPECT_EQ(sets[0].name, "model");
  EXPECT_THAT(sets[0].files, ElementsAre(std::pair(0, "model_world_size_2_rank_0.pt"),
                                         std::pair(1, "model_world_size_2_rank_1.pt")));
  EXPECT_EQ(sets[1].name, "ranks");
  EXPECT_THAT(sets[1].files, ElementsAre(std::pair(2, "rank2.pth"), std::pair(10, "rank10.pth")));
  EXPECT_EQ(sets[2].name, "checkpoint");
  EXPECT_EQ(sets[3].name, "x");
}

}  // namespace
}  // namespace fsdp::formats
