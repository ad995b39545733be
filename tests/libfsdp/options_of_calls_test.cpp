// SPDX-License-Identifier: Apache-2.0
// What each option of a call changes, as options_test.cpp for those of a sharded module.  Suites
// have the names of the structs.
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/fsdp.h"
#include "libfsdp/strategy.h"
#include "tests/libfsdp/train_loop.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using namespace test;  // the modules
using Sharded = FullyShardedDataParallel<Gpt>;

// ---- summon_full_params

// Two ranks with a unit for each block look at a GPT whose parameters are summoned.
void summoned(const SummonOptions& options,
              const std::function<void(Gpt&, Sharded&, int rank)>& look,
              const std::function<void(Gpt&, Sharded&, int rank)>& after = {}) {
  spawn_ranks(2, [&](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    gpt_loss(sharded, group->rank(), 0).backward();
    {
      const FullParams scope = sharded.summon_full_params(options);
      look(module, sharded, group->rank());
    }
    if (after) after(module, sharded, group->rank());
  });
}

const Tensor& up_of(Gpt& module) {
  return module->blocks->ptr<BlockImpl>(0)->up->weight;
}

TEST(SummonOptions, recurse) {
  summoned({.recurse = false}, [](Gpt& module, Sharded&, int) {
    EXPECT_EQ(up_of(module).storage().nbytes(), 0U);
    EXPECT_NE(module->head->weight.storage().nbytes(), 0U);
  });
}

TEST(SummonOptions, writeback) {
  summoned(
      {.writeback = false},
      [](Gpt& module, Sharded&, int) {
        const torch::NoGradGuard no_grad;
        Tensor(up_of(module)).fill_(7);
      },
      [](Gpt&, Sharded& sharded, int) {
        for (const auto& [name, shard] : sharded.named_parameters())
          EXPECT_FALSE(torch::all(shard == 7).item<bool>()) << name;
      });
}

TEST(SummonOptions, rank0_only) {
  summoned({.writeback = false, .rank0_only = true}, [](Gpt& module, Sharded&, int rank) {
    EXPECT_EQ(up_of(module).storage().nbytes() == 0, rank == 1);
  });
}

TEST(SummonOptions, offload_to_cpu) {
  if (!on_sim()) GTEST_SKIP() << "parameters are on the CPU";
  summoned({.offload_to_cpu = true},
           [](Gpt& module, Sharded&, int) { EXPECT_TRUE(up_of(module).is_cpu()); });
}

TEST(SummonOptions, with_grads) {
  summoned({.with_grads = true}, [](Gpt& module, Sharded&, int) {
    EXPECT_EQ(up_of(module).grad().storage().nbytes(), up_of(module).nbytes());
  });
}

// ---- state dicts

// Gives the state dicts of a GPT and its optimizer to `look`, on two ranks.
void states(StateDictType type, AnyStateDictConfig model, AnyOptimStateDictConfig optimizer,
            const std::function<void(const StateDict&, const StateDict&, int rank)>& look) {
  spawn_ranks(2, [&](const Group& group) {
    Sharded sharded(filled_gpt(), options_over(group));
    torch::optim::Adam adam(sharded.parameters(), 1e-3);
    gpt_loss(sharded, group->rank(), 0).backward();
    adam.step();
    const StateDictTypeScope scope(sharded, type, model, optimizer);
    const StateDict weights = sharded.state_dict();
    look(weights, optim_state_dict(sharded, adam), group->rank());
  });
}

TEST(StateDictConfig, offload_to_cpu) {
  if (!on_sim()) GTEST_SKIP() << "state is on the CPU";
  states(StateDictType::kFull, FullStateDictConfig{{true}, false}, FullOptimStateDictConfig(),
         [](const StateDict& weights, const StateDict&, int) {
           EXPECT_TRUE(weights.at("head.weight").as_tensor()->is_cpu());
         });
}

TEST(FullStateDictConfig, rank0_only) {
  states(StateDictType::kFull, FullStateDictConfig{{false}, true}, FullOptimStateDictConfig(),
         [](const StateDict& weights, const StateDict&, int rank) {
           EXPECT_EQ(weights.empty(), rank == 1);
         });
}

TEST(OptimStateDictConfig, offload_to_cpu) {
  if (!on_sim()) GTEST_SKIP() << "state is on the CPU";
  states(StateDictType::kFull, FullStateDictConfig(), FullOptimStateDictConfig{{false}, false},
         [](const StateDict&, const StateDict& optimizer, int) {
           const StateDict& state = optimizer.at("state").dict().at("head.weight").dict();
           EXPECT_FALSE(state.at("exp_avg").as_tensor()->is_cpu());
         });
}

TEST(FullOptimStateDictConfig, rank0_only) {
  states(StateDictType::kFull, FullStateDictConfig(), FullOptimStateDictConfig{{true}, true},
         [](const StateDict&, const StateDict& optimizer, int rank) {
           EXPECT_EQ(optimizer.empty(), rank == 1);
         });
}

// ---- fully_shard

// Shards a GPT on two ranks with options that `set` changes.
void composed(
    const std::function<void(FullyShardOptions&, const Group&)>& set,
    const std::function<void(Gpt&, ShardedModule&, int rank)>& look,
    const std::function<Gpt()>& build = [] { return filled_gpt(); }) {
  spawn_ranks(2, [&](const Group& group) {
    Gpt module = build();
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = device_id_of_rank(group->rank());
    set(options, group);
    const auto sharded = fully_shard(module, options);
    look(module, *sharded, group->rank());
  });
}

const Unit& root_of(const ShardedModule& sharded) {
  return *sharded.units().front();
}

// An option that an engine has by this name reaches it; options_test.cpp says what it does there.
template <typename T>
void arrives(T FullyShardOptions::*member, T FsdpOptions::*there, const T& value) {
  composed(
      [&](FullyShardOptions& options, const Group&) { options.*member = value; },
      [&](Gpt&, ShardedModule& sharded, int) { EXPECT_TRUE(sharded.options().*there == value); });
}

TEST(FullyShardOptions, replicate_group) {
  composed(
      [](FullyShardOptions& options, const Group& group) {
        options.process_group = group->subgroup({group->rank()});
        options.replicate_group = group;
        options.sharding_strategy = ShardingStrategy::kHybridShard;
        options.node_size = 1;
      },
      [](Gpt&, ShardedModule& sharded, int) {
        ASSERT_NE(root_of(sharded).sharding->mesh.replicate, nullptr);
      });
}

TEST(FullyShardOptions, mesh) {
  composed(
      [](FullyShardOptions& options, const Group& group) {
        options.process_group = nullptr;
        options.mesh.emplace(group, std::vector<MeshDim>{{"copies", group->size()}, {"dp", 1}});
      },
      [](Gpt&, ShardedModule& sharded, int) {
        EXPECT_EQ(root_of(sharded).sharding->strategy, ShardingStrategy::kHybridShard);
        EXPECT_EQ(root_of(sharded).sharding->world_size(), 1);
      });
}

TEST(FullyShardOptions, node_size) {
  composed(
      [](FullyShardOptions& options, const Group&) {
        options.sharding_strategy = ShardingStrategy::kHybridShard;
        options.node_size = 1;
      },
      [](Gpt&, ShardedModule& sharded, int) {
        EXPECT_EQ(root_of(sharded).sharding->world_size(), 1);
      });
}

TEST(FullyShardOptions, sharding_strategy) {
  composed([](FullyShardOptions& options,
              const Group&) { options.sharding_strategy = ShardingStrategy::kNoShard; },
           [](Gpt&, ShardedModule& sharded, int) {
             EXPECT_EQ(root_of(sharded).sharding->world_size(), 1);
           });
}

TEST(FullyShardOptions, reshard_after_forward) {
  composed([](FullyShardOptions& options, const Group&) { options.reshard_after_forward = false; },
           [](Gpt&, ShardedModule& sharded, int) {
             EXPECT_FALSE(root_of(sharded).reshards_after_forward);
           });
}

TEST(FullyShardOptions, offload_policy) {
  composed([](FullyShardOptions& options,
              const Group&) { options.offload_policy.offload_params = true; },
           [](Gpt&, ShardedModule& sharded, int) {
             EXPECT_TRUE(root_of(sharded).sharding->is_offloaded);
             for (const Tensor& shard : sharded.parameters()) EXPECT_TRUE(shard.is_cpu());
           });
}

TEST(FullyShardOptions, ignored_params) {
  spawn_ranks(1, [](const Group& group) {
    Gpt module = filled_gpt();
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = device_id_of_rank(0);
    options.ignored_params = {module->head->weight};
    EXPECT_EQ(fully_shard(module, options)->unmanaged().size(), 1U);
  });
}

TEST(FullyShardOptions, param_init_fn) {
  composed(
      [](FullyShardOptions& options, const Group& group) {
        options.device_id = device_of_rank(group->rank());
        options.param_init_fn = [device = device_of_rank(group->rank())](nn::Module& inner) {
          const torch::NoGradGuard no_grad;
          to_empty(inner, device, /*recurse=*/false);
          for (Tensor& parameter : inner.parameters(/*recurse=*/false)) parameter.fill_(3);
        };
      },
      [](Gpt&, ShardedModule& sharded, int) {
        for (const Tensor& shard : sharded.parameters())
          EXPECT_TRUE(shard.numel() == 0 || torch::all(shard == 3).item<bool>());
      },
      [] {
        const MetaDevice meta;
        return Gpt(2, false);
      });
}

TEST(FullyShardOptions, device_id) {
  if (on_sim()) GTEST_SKIP() << "each rank has its own";
  arrives(&FullyShardOptions::device_id, &FsdpOptions::device_id,
          std::optional<c10::Device>(c10::kCPU));
}

TEST(FullyShardOptions, sync_module_states) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : module->parameters()) parameter.fill_(group->rank() + 1.0);
    }
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = device_id_of_rank(group->rank());
    options.sync_module_states = true;
    for (const Tensor& shard : fully_shard(module, options)->parameters())
      EXPECT_TRUE(shard.numel() == 0 || torch::all(shard == 1).item<bool>());
  });
}

TEST(FullyShardOptions, backward_prefetch) {
  arrives(&FullyShardOptions::backward_prefetch, &FsdpOptions::backward_prefetch,
          BackwardPrefetch::kNone);
}

TEST(FullyShardOptions, forward_prefetch) {
  arrives(&FullyShardOptions::forward_prefetch, &FsdpOptions::forward_prefetch, true);
}

TEST(FullyShardOptions, limit_all_gathers) {
  arrives(&FullyShardOptions::limit_all_gathers, &FsdpOptions::limit_all_gathers, false);
}

TEST(FullyShardOptions, bucket_bytes) {
  arrives(&FullyShardOptions::bucket_bytes, &FsdpOptions::bucket_bytes, std::int64_t{7});
}

TEST(MixedPrecisionPolicy, param_dtype) {
  composed([](FullyShardOptions& options,
              const Group&) { options.mp_policy.param_dtype = at::kBFloat16; },
           [](Gpt& module, ShardedModule&, int) {
             EXPECT_EQ(module->head->weight.scalar_type(), at::kBFloat16);
           });
}

TEST(MixedPrecisionPolicy, reduce_dtype) {
  composed([](FullyShardOptions& options,
              const Group&) { options.mp_policy.reduce_dtype = at::kBFloat16; },
           [](Gpt&, ShardedModule& sharded, int) {
             EXPECT_EQ(root_of(sharded).groups.front().reduce_dtype, at::kBFloat16);
           });
}

TEST(MixedPrecisionPolicy, output_dtype) {
  composed([](FullyShardOptions& options,
              const Group&) { options.mp_policy.output_dtype = at::kDouble; },
           [](Gpt& module, ShardedModule&, int rank) {
             const Tensor tokens = random_tokens({1, 3}, 53, 1).to(device_of_rank(rank));
             EXPECT_EQ(call(module, tokens).scalar_type(), at::kDouble);
           });
}

TEST(MixedPrecisionPolicy, cast_forward_inputs) {
  spawn_ranks(1, [](const Group& group) {
    nn::Linear layer(4, 4);
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = device_id_of_rank(0);
    options.mp_policy.param_dtype = at::kBFloat16;
    options.mp_policy.cast_forward_inputs = false;
    const auto sharded = fully_shard(layer, options);
    EXPECT_ANY_THROW(layer->forward(torch::ones({2, 4}, device_of_rank(0))));
  });
}

// ---- Strategy

// Runs `body` on two ranks, with options by which a strategy finds the other.
void with_strategy(int world_size, const std::function<void(StrategyOptions&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  spawn_ranks(world_size, [&](const Group& group) {
    StrategyOptions options;
    options.cluster_environment.rank = group->rank();
    options.cluster_environment.world_size = world_size;
    options.cluster_environment.store = store;
    options.timeout = std::chrono::seconds(77);
    if (on_sim()) {
      for (int rank = 0; rank < world_size; ++rank)
        options.parallel_devices.push_back(device_of_rank(rank));
      options.process_group_backend = backend_of_devices();
      options.cluster_environment.local_rank = group->rank();
    }
    body(options);
  });
}

TEST(StrategyOptions, process_group_backend) {
  with_strategy(1, [](StrategyOptions& options) {
    options.process_group_backend = "carrier_pigeon";
    Strategy<Gpt> strategy(options);
    EXPECT_THAT(error_of([&] { strategy.setup_environment(); }), HasSubstr("carrier_pigeon"));
  });
}

TEST(StrategyOptions, timeout) {
  with_strategy(1, [](StrategyOptions& options) {
    Strategy<Gpt> strategy(options);
    strategy.setup_environment();
    EXPECT_EQ(strategy.process_group()->timeout(), std::chrono::seconds(77));
    strategy.teardown();
  });
}

TEST(StrategyOptions, parallel_devices) {
  with_strategy(1, [](StrategyOptions& options) {
    options.parallel_devices = {device_of_rank(0), device_of_rank(0)};
    options.cluster_environment.local_rank = 3;
    Strategy<Gpt> strategy(options);
    EXPECT_THAT(error_of([&] { strategy.setup_environment(); }),
                HasSubstr("parallel_devices names 2 devices"));
  });
}

TEST(StrategyOptions, device_mesh) {
  with_strategy(2, [](StrategyOptions& options) {
    options.fsdp.sharding_strategy = ShardingStrategy::kHybridShard;
    options.device_mesh = std::pair(2, 1);
    Strategy<Gpt> strategy(options);
    strategy.setup_environment();
    EXPECT_EQ(root_of(strategy.setup(filled_gpt())).sharding->world_size(), 1);
    strategy.teardown();
  });
}

TEST(StrategyOptions, state_dict_type) {
  const TempDir dir;
  with_strategy(2, [&](StrategyOptions& options) {
    options.state_dict_type = StateDictType::kSharded;
    Strategy<Gpt> strategy(options);
    strategy.setup_environment();
    strategy.setup(filled_gpt());
    strategy.save_checkpoint(strategy.dump_checkpoint(), dir.path() / "step-1");
    EXPECT_TRUE(std::filesystem::is_directory(dir.path() / "step-1"));
    strategy.teardown();
  });
}

TEST(StrategyOptions, state_dict_to_cpu) {
  if (!on_sim()) GTEST_SKIP() << "state is on the CPU";
  with_strategy(1, [](StrategyOptions& options) {
    options.state_dict_to_cpu = false;
    Strategy<Gpt> strategy(options);
    strategy.setup_environment();
    strategy.setup(filled_gpt());
    const StateDict state = strategy.lightning_module_state_dict();
    EXPECT_FALSE(state.at("head.weight").as_tensor()->is_cpu());
    strategy.teardown();
  });
}

}  // namespace
}  // namespace fsdp
