// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/state_dict.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/collectives.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/libfsdp/state/whole_state.h"

namespace fsdp {
using namespace internal;
namespace {

using test::changed_state;
using test::expect_same;
using test::filled;
using test::Gpt;
using test::keys_of;
using test::kStrategies;
using test::Odd;
using test::options_for;
using test::Stacks;
using test::Tied;
using test::Zoo;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

template <typename Holder>
void expect_whole_state(int world_size, ShardingStrategy strategy, bool use_orig_params) {
  SCOPED_TRACE(std::string(name_of(strategy)) + " on " + std::to_string(world_size));
  spawn_ranks(world_size, [&](const Group& group) {
    FsdpOptions options = options_for(group, use_orig_params);
    options.sharding_strategy = strategy;
    FullyShardedDataParallel<Holder> sharded(filled<Holder>(), options);
    Holder reference = filled<Holder>();
    const StateDict before = sharded.state_dict();
    expect_same(before, *reference);
    // A full one fits any module, and loading does not change state dicts given before.
    const StateDict other = changed_state(*reference);
    EXPECT_TRUE(sharded.load_state_dict(other).same_keys());
    expect_same(before, *reference);
    const StateDict after = sharded.state_dict();
    for (const auto& [key, value] : other.entries())
      EXPECT_TRUE(torch::equal(*after.at(key).as_tensor(), *value.as_tensor())) << text_of(key);
  });
}

TEST(StateDict, whole_tensors_are_those_of_the_unsharded_module) {
  for (const int world_size : {1, 2, 3, 4}) {
    for (const bool use_orig_params : {false, true}) {
      expect_whole_state<Odd>(world_size, ShardingStrategy::kFullShard, use_orig_params);
      expect_whole_state<Stacks>(world_size, ShardingStrategy::kFullShard, use_orig_params);
      expect_whole_state<Zoo>(world_size, ShardingStrategy::kFullShard, use_orig_params);
    }
  }
  for (const ShardingStrategy strategy : kStrategies) {
    expect_whole_state<Odd>(4, strategy, true);
    expect_whole_state<Gpt>(2, strategy, false);
  }
}

TEST(StateDict, keys_are_in_the_order_of_python) {
  // For each module its parameters, its buffers, its children.
  struct NestedImpl : torch::nn::Module {
    NestedImpl() {
      register_module("inner", torch::nn::BatchNorm1d(3));
      register_buffer("table", torch::ones({2}));
      register_parameter("w", torch::ones({4, 3}));
      register_module("head", torch::nn::Linear(3, 2));
      register_buffer("mask", torch::ones({2}, torch::kBool));
    }
  };
  const auto expected =
      ElementsAre("w", "table", "mask", "inner.weight", "inner.bias", "inner.running_mean",
                  "inner.running_var", "inner.num_batches_tracked", "head.weight", "head.bias");
  spawn_ranks(2, [&](const Group& group) {
    ShardedModule sharded(std::make_shared<NestedImpl>(), options_for(group));
    EXPECT_THAT(keys_of(sharded.state_dict()), expected);
    set_state_dict_type(sharded, StateDictType::kSharded);
    EXPECT_THAT(keys_of(sharded.state_dict()), expected);
  });
}

TEST(StateDict, sharded_tensors_are_the_rows_and_share_memory_with_them) {
  for (const ShardingStrategy strategy : kStrategies) {
    spawn_ranks(4, [&](const Group& group) {
      FsdpOptions options = options_for(group, true);
      options.sharding_strategy = strategy;
      FullyShardedDataParallel<Odd> sharded(filled<Odd>(), options);
      Odd reference = filled<Odd>();
      set_state_dict_type(sharded, StateDictType::kSharded);
      const StateDict state = sharded.state_dict();
      const bool hybrid = strategy == ShardingStrategy::kHybridShard ||
                          strategy == ShardingStrategy::kHybridShardZero2;
      const int ranks = strategy == ShardingStrategy::kNoShard ? 1 : hybrid ? 2 : 4;
      const auto parameters = sharded.named_parameters();
      ASSERT_EQ(parameters.size(), state.size());
      for (const auto& [name, shard] : parameters) {
        const ShardedTensor* const found = state.at(name).as_sharded();
        ASSERT_NE(found, nullptr) << name;
        EXPECT_EQ(found->layout.world_size, ranks);
        EXPECT_EQ(found->part, group->rank() % ranks);
        EXPECT_EQ(found->replica, group->rank() / ranks);
        EXPECT_EQ(found->replica_count, 4 / ranks);
        EXPECT_EQ(found->local.sizes(), shard.sizes()) << name;
        EXPECT_EQ(found->local.const_data_ptr(), shard.const_data_ptr()) << name;
        const Tensor whole = reference->named_parameters()[name].detach();
        EXPECT_EQ(found->layout.shape, whole.sizes().vec()) << name;
        const auto rows = whole.reshape({found->layout.rows, found->layout.row_numel})
                              .narrow(0, found->layout.first_row(found->part),
                                      found->layout.rows_of(found->part));
        EXPECT_TRUE(torch::equal(rows.reshape(-1), found->local.reshape(-1))) << name;
      }
      // A rank that leaves too early would be missed by one that still makes its groups.
      barrier(group, "end of the test");
    });
  }
}

// As a user sees them: fewer rows than ranks are counted over further dimensions.
TEST(StateDict, rows_of_stacks_are_rows_of_matrices_or_elements) {
  spawn_ranks(4, [](const Group& group) {
    FullyShardedDataParallel<Stacks> sharded(filled<Stacks>(), options_for(group, true));
    const bool last = group->rank() == 3;
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const auto& [name, shard] : sharded.named_parameters()) shapes[name] = shard.sizes().vec();
    using Shape = std::vector<std::int64_t>;
    // 3 and 2 matrices of rows; 21 and 10 rows would be padded to 24 and 12: elements.
    EXPECT_EQ(shapes["up"], (last ? Shape{24} : Shape{27}));
    EXPECT_EQ(shapes["down"], (last ? Shape{16} : Shape{18}));
    EXPECT_EQ(shapes["table"], (Shape{1, 7}));
    EXPECT_EQ(shapes["gain"], group->rank() == 0 ? Shape{1} : Shape{0});
    EXPECT_EQ(shapes["shift"], group->rank() == 0 ? Shape{} : Shape{0});
  });
}

// State that differs only in the way it is cut is rejected.
TEST(StateDict, local_state_tells_how_stacks_are_cut) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Stacks> sharded(filled<Stacks>(), options_for(group));
    set_state_dict_type(sharded, StateDictType::kLocal);
    const StateDict state = sharded.state_dict();
    EXPECT_THAT(
        *state.at("_flat_param._layout").as_string(),
        AllOf(HasSubstr("table [1, 4, 7] in rows of 7 at "), HasSubstr("up [3, 7, 5] at ")));
  });
}

TEST(StateDict, local_state_is_each_units_flat_buffer) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    set_state_dict_type(sharded, StateDictType::kLocal);
    const StateDict state = sharded.state_dict();
    std::vector<std::string> flat;
    for (const auto& [name, tensor] : sharded.named_parameters()) {
      flat.push_back(name);
      EXPECT_EQ(state.at(name).as_tensor()->const_data_ptr(), tensor.const_data_ptr());
    }
    EXPECT_EQ(state.size(), 2 * flat.size());
  });
}

struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    const Tensor weight = torch::arange(6.0).view({3, 2}).set_requires_grad(true);
    register_parameter("first", weight);
    register_parameter("second", weight);
  }
};

TEST(StateDict, tied_parameters_are_under_each_name) {
  spawn_ranks(2, [](const Group& group) {
    ShardedModule sharded(std::make_shared<TwiceImpl>(), options_for(group));
    StateDict state = sharded.state_dict();
    EXPECT_THAT(keys_of(state), ElementsAre("first", "second"));
    EXPECT_TRUE(torch::equal(*state.at("second").as_tensor(), torch::arange(6.0).view({3, 2})));
    state.erase("first");
    EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }), HasSubstr("missing 'first'"));
  });
}

TEST(StateDict, only_rank_0_gets_what_is_rank_0s) {
  for (const ShardingStrategy strategy : kStrategies) {
    spawn_ranks(4, [&](const Group& group) {
      FsdpOptions options = options_for(group);
      options.sharding_strategy = strategy;
      FullyShardedDataParallel<Zoo> sharded(filled<Zoo>(), options);
      FullStateDictConfig config;
      config.rank0_only = true;
      config.offload_to_cpu = true;
      const StateDictTypeScope scope(sharded, StateDictType::kFull, config);
      const StateDict state = sharded.state_dict();
      if (group->rank() == 0) {
        expect_same(state, *filled<Zoo>());
      } else {
        EXPECT_TRUE(state.empty());
      }
    });
  }
}

TEST(StateDict, ignored_parameters_and_modules_are_whole) {
  spawn_ranks(2, [](const Group& group) {
    for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
      Zoo module = filled<Zoo>();
      FsdpOptions options = options_for(group);
      options.ignored_modules = {module->batch.ptr(), module->encoder.ptr()};
      FullyShardedDataParallel<Zoo> sharded(module, options);
      set_state_dict_type(sharded, type);
      const StateDict state = sharded.state_dict();
      Zoo reference = filled<Zoo>();
      EXPECT_TRUE(torch::equal(*state.at("encoder.linear1.weight").as_tensor(),
                               reference->encoder->named_parameters()["linear1.weight"]));
      const StateDict other = changed_state(*reference);
      sharded.load_state_dict(other);
      EXPECT_TRUE(
          torch::equal(module->batch->running_var, *other.at("batch.running_var").as_tensor()));
      EXPECT_TRUE(torch::equal(module->batch->weight, *other.at("batch.weight").as_tensor()));
    }
  });
}

struct BufferedImpl : torch::nn::Module {
  BufferedImpl() : linear(register_module("linear", torch::nn::Linear(4, 3))) {
    table = register_buffer("table", torch::arange(1, 5) / 64.0);
  }
  torch::nn::Linear linear;
  Tensor table;
};

TEST(StateDict, buffers_that_mixed_precision_cast_are_given_as_they_were_built) {
  spawn_ranks(2, [](const Group& group) {
    const auto module = std::make_shared<BufferedImpl>();
    FsdpOptions options = options_for(group);
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    ShardedModule sharded(module, options);
    ASSERT_EQ(module->table.scalar_type(), torch::kBFloat16);
    const auto dtype_of = [&](StateDictType type, const char* key) {
      const StateDictTypeScope scope(sharded, type);
      return sharded.state_dict().at(key).as_tensor()->scalar_type();
    };
    EXPECT_EQ(dtype_of(StateDictType::kFull, "table"), torch::kFloat);
    EXPECT_EQ(dtype_of(StateDictType::kFull, "linear.weight"), torch::kFloat);
    EXPECT_EQ(dtype_of(StateDictType::kSharded, "table"), torch::kFloat);
    EXPECT_EQ(dtype_of(StateDictType::kLocal, "table"), torch::kBFloat16);
    // On the way back nothing counts as converted, and the module computes in the same dtype.
    StateDict state = sharded.state_dict();
    state.set("table", torch::ones({4}));
    EXPECT_TRUE(sharded.load_state_dict(state).cast.empty());
    EXPECT_EQ(module->table.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::equal(module->table, torch::ones({4}, torch::kBFloat16)));
  });
}

TEST(StateDict, state_is_given_and_taken_between_steps_alone) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    const StateDict state = sharded.state_dict();
    {
      const FullParams scope = sharded.summon_full_params();
      EXPECT_THAT(error_of([&] { sharded.state_dict(); }),
                  HasSubstr("state_dict inside summon_full_params"));
      EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }),
                  HasSubstr("load_state_dict inside summon_full_params"));
    }
    const Tensor tokens = random_tokens({2, 5}, 53, 1);
    const Tensor loss = test::next_token_loss(sharded.forward(tokens), tokens);
    loss.register_hook([&](const Tensor&) {
      EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }),
                  HasSubstr("load_state_dict inside forward or backward"));
    });
    loss.backward();
    // A backward of an earlier result reports that its weights are gone.
    const Tensor stale = test::next_token_loss(sharded.forward(tokens), tokens);
    sharded.load_state_dict(state);
    EXPECT_THAT(error_of([&] { stale.backward(); }),
                HasSubstr("was changed (by an optimizer's step, a load"));
  });
}

TEST(StateDict, types_and_configurations_are_set_and_put_back) {
  spawn_ranks(1, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    EXPECT_EQ(get_state_dict_type(sharded).state_dict_type, StateDictType::kFull);
    {
      ShardedOptimStateDictConfig config;
      config.offload_to_cpu = false;
      const StateDictTypeScope scope(sharded, StateDictType::kSharded, std::nullopt, config);
      const StateDictSettings& set = get_state_dict_type(sharded);
      EXPECT_EQ(set.state_dict_type, StateDictType::kSharded);
      EXPECT_FALSE(std::get<ShardedStateDictConfig>(set.state_dict_config).offload_to_cpu);
      EXPECT_FALSE(
          std::get<ShardedOptimStateDictConfig>(set.optim_state_dict_config).offload_to_cpu);
    }
    EXPECT_EQ(get_state_dict_type(sharded).state_dict_type, StateDictType::kFull);
    const StateDictSettings before = set_state_dict_type(sharded, StateDictType::kLocal);
    EXPECT_EQ(before.state_dict_type, StateDictType::kFull);
    EXPECT_TRUE(std::get<FullOptimStateDictConfig>(before.optim_state_dict_config).offload_to_cpu);
    EXPECT_FALSE(
        std::get<LocalOptimStateDictConfig>(get_state_dict_type(sharded).optim_state_dict_config)
            .offload_to_cpu);
    EXPECT_THAT(error_of([&] {
                  set_state_dict_type(sharded, StateDictType::kFull, ShardedStateDictConfig());
                }),
                HasSubstr("set_state_dict_type(FULL_STATE_DICT) with a state_dict_config of "
                          "SHARDED_STATE_DICT"));
    EXPECT_THAT(error_of([&] {
                  set_state_dict_type(sharded, StateDictType::kFull, std::nullopt,
                                      LocalOptimStateDictConfig());
                }),
                HasSubstr("an optim_state_dict_config"));
    EXPECT_EQ(get_state_dict_type(sharded).state_dict_type, StateDictType::kLocal);
  });
}

}  // namespace
}  // namespace fsdp
