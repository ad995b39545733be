// SPDX-License-Identifier: Apache-2.0
// What each option of a call changes, as options_test.cpp for those of a sharded module.  Suites
// have the names of the structs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fairscale_options.h"
#include "libfsdp/fsdp.h"
#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/strategy.h"
#include "tests/libfsdp/train_loop.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
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

// ---- DDPFullyShardedStrategy

TEST(DDPFullyShardedOptions, cpu_offload) {
  DDPFullyShardedOptions options;
  options.cpu_offload = true;
  EXPECT_TRUE(strategy_options(options).fsdp.cpu_offload.offload_params);
}

TEST(DDPFullyShardedOptions, flatten_parameters) {
  DDPFullyShardedOptions options;
  options.flatten_parameters = false;
  EXPECT_TRUE(strategy_options(options).fsdp.use_orig_params);
}

TEST(DDPFullyShardedOptions, reshard_after_forward) {
  DDPFullyShardedOptions options;
  options.reshard_after_forward = false;
  EXPECT_EQ(strategy_options(options).fsdp.sharding_strategy, ShardingStrategy::kShardGradOp);
}

TEST(DDPFullyShardedOptions, move_grads_to_cpu) {
  DDPFullyShardedOptions options;
  options.move_grads_to_cpu = true;
  EXPECT_THAT(error_of([&] { strategy_options(options); }), HasSubstr("move_grads_to_cpu"));
}

TEST(DDPFullyShardedOptions, fp32_reduce_scatter) {
  DDPFullyShardedOptions options;
  options.compute_dtype = at::kHalf;
  options.fp32_reduce_scatter = true;
  EXPECT_EQ(strategy_options(options).fsdp.mixed_precision.reduce_dtype, at::kFloat);
}

TEST(DDPFullyShardedOptions, compute_dtype) {
  DDPFullyShardedOptions options;
  options.compute_dtype = at::kHalf;
  EXPECT_EQ(strategy_options(options).fsdp.mixed_precision.param_dtype, at::kHalf);
}

TEST(DDPFullyShardedOptions, bucket_cap_mb) {
  DDPFullyShardedOptions options;
  options.bucket_cap_mb = 3;
  EXPECT_EQ(strategy_options(options).fsdp.bucket_bytes, 3 << 20);
  options.bucket_cap_mb = -1;
  EXPECT_EQ(strategy_options(options).fsdp.bucket_bytes, 0);
}

TEST(DDPFullyShardedOptions, min_num_params) {
  DDPFullyShardedOptions options;
  options.min_num_params = 100;
  EXPECT_FALSE(unit_names(*filled_gpt(), strategy_options(options).fsdp.auto_wrap_policy).empty());
}

TEST(DDPFullyShardedOptions, state_dict_to_cpu) {
  DDPFullyShardedOptions options;
  options.state_dict_to_cpu = false;
  EXPECT_FALSE(strategy_options(options).state_dict_to_cpu);
}

// ---- defaults

TEST(Defaults, are_those_of_the_documentation) {
  const FsdpOptions wrapper;
  EXPECT_EQ(wrapper.sharding_strategy, ShardingStrategy::kFullShard);
  EXPECT_FALSE(wrapper.cpu_offload.offload_params);
  EXPECT_FALSE(wrapper.auto_wrap_policy);
  EXPECT_EQ(wrapper.backward_prefetch, BackwardPrefetch::kBackwardPre);
  EXPECT_TRUE(wrapper.ignored_modules.empty() && wrapper.ignored_states.empty());
  EXPECT_FALSE(wrapper.param_init_fn || wrapper.device_id || wrapper.sync_module_states);
  EXPECT_FALSE(wrapper.forward_prefetch);
  EXPECT_TRUE(wrapper.limit_all_gathers);
  const MixedPrecision& mixed = wrapper.mixed_precision;
  EXPECT_FALSE(mixed.param_dtype || mixed.reduce_dtype || mixed.buffer_dtype);
  EXPECT_FALSE(mixed.keep_low_precision_grads || mixed.cast_forward_inputs);
  EXPECT_TRUE(mixed.cast_root_forward_inputs);
  const SummonOptions summon;
  EXPECT_TRUE(summon.recurse && summon.writeback);
  EXPECT_FALSE(summon.rank0_only || summon.offload_to_cpu || summon.with_grads);
  EXPECT_FALSE(FullStateDictConfig().offload_to_cpu || FullStateDictConfig().rank0_only ||
               ShardedStateDictConfig().offload_to_cpu || LocalStateDictConfig().offload_to_cpu);
  EXPECT_TRUE(OptimStateDictConfig().offload_to_cpu && FullOptimStateDictConfig().offload_to_cpu &&
              ShardedOptimStateDictConfig().offload_to_cpu);
  EXPECT_FALSE(FullOptimStateDictConfig().rank0_only || LocalOptimStateDictConfig().offload_to_cpu);
  EXPECT_EQ(StateDictSettings().state_dict_type, StateDictType::kFull);
  const StrategyOptions strategy;
  EXPECT_EQ(strategy.timeout, std::chrono::seconds(1800));
  EXPECT_EQ(strategy.state_dict_type, StateDictType::kFull);
  EXPECT_TRUE(StrategyBase::restore_checkpoint_after_setup);
  EXPECT_FALSE(StrategyBase::lightning_restore_optimizer);
  const DDPFullyShardedOptions fairscale;
  EXPECT_TRUE(fairscale.flatten_parameters && fairscale.reshard_after_forward);
  EXPECT_FALSE(fairscale.cpu_offload || fairscale.move_grads_to_cpu ||
               fairscale.fp32_reduce_scatter || fairscale.compute_dtype);
  EXPECT_EQ(fairscale.bucket_cap_mb, 25);
  EXPECT_EQ(fairscale.min_num_params, 100'000'000);
  EXPECT_TRUE(fairscale.state_dict_to_cpu);
}

// ---- what the documentation says of parameters

TEST(Documented, summoned_parameters_are_in_full_precision_and_buffers_are_not) {
  spawn_ranks(2, [](const Group& group) {
    nn::Sequential module(nn::Linear(4, 3));
    module[0]->register_buffer("table", torch::ones({2}));
    FsdpOptions options = options_over(group);
    options.mixed_precision.param_dtype = at::kBFloat16;
    options.mixed_precision.buffer_dtype = at::kBFloat16;
    FullyShardedDataParallel<nn::Sequential> sharded(module, options);
    const FullParams scope = sharded.summon_full_params();
    EXPECT_EQ(module->parameters().front().scalar_type(), at::kFloat);
    EXPECT_EQ(module->buffers().front().scalar_type(), at::kBFloat16);
  });
}

TEST(Documented, shard_grad_op_keeps_parameters_after_forward_and_within_no_sync) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
    options.sharding_strategy = ShardingStrategy::kShardGradOp;
    Gpt module = filled_gpt();
    Sharded sharded(module, options);
    const auto is_gathered = [&] { return up_of(module).storage().nbytes() != 0; };
    EXPECT_FALSE(is_gathered());
    {
      const NoSync scope(sharded);
      const Tensor loss = gpt_loss(sharded, group->rank(), 0);
      EXPECT_TRUE(is_gathered());
      loss.backward();
      EXPECT_TRUE(is_gathered());
    }
    gpt_loss(sharded, group->rank(), 1).backward();
    EXPECT_FALSE(is_gathered());
  });
}

TEST(Documented, sharded_modules_inside_ignored_ones_are_not_ignored) {
  for (const bool itself : {false, true}) {
    spawn_ranks(2, [&](const Group& group) {
      Gpt module = filled_gpt();
      FullyShardOptions inner;
      inner.process_group = group;
      inner.device_id = device_id_of_rank(group->rank());
      const auto block = fully_shard(module->blocks->ptr(0), inner);
      module->blocks->ptr(1)->to(device_of_rank(group->rank()));  // stays where it is
      FsdpOptions options = options_over(group);
      options.ignored_modules = {itself ? module->blocks->ptr(0) : module->blocks.ptr()};
      Sharded sharded(module, options);
      EXPECT_THAT(sharded.unit_names(), ElementsAre("", "blocks.0"));
      gpt_loss(sharded, group->rank(), 0).backward();
      for (const auto& [name, parameter] : block->named_parameters())
        EXPECT_TRUE(parameter.grad().defined()) << name;
    });
  }
}

TEST(Documented, a_part_that_is_a_unit_of_its_own_runs_alone) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = device_id_of_rank(group->rank());
    fully_shard(module->blocks->ptr(0), options);
    const auto sharded = fully_shard(module, options);
    const torch::NoGradGuard no_grad;
    const Tensor x = random_values({1, 3, 24}, 5);
    const Tensor expected = filled_gpt()->blocks->ptr<BlockImpl>(0)->forward(x);
    const Tensor found =
        module->blocks->ptr<BlockImpl>(0)->forward(x.to(device_of_rank(group->rank())));
    EXPECT_LE(distance(found, expected), 1e-6);
  });
}

TEST(Documented, inputs_are_moved_to_the_device_of_computation) {
  if (!on_sim()) GTEST_SKIP() << "there is one device";
  spawn_ranks(2, [](const Group& group) {
    nn::Linear module(4, 3);
    FullyShardedDataParallel<nn::Linear> sharded(module, options_over(group));
    EXPECT_EQ(sharded.forward(torch::ones({2, 4})).device(), device_of_rank(group->rank()));
  });
}

TEST(Documented, gradients_of_no_sync_stay_on_the_device_until_the_reduction) {
  if (!on_sim()) GTEST_SKIP() << "there is one device";
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = options_over(group);
    options.cpu_offload.offload_params = true;
    Sharded sharded(filled_gpt(), options);
    const FlatGroup& kept = root_of(sharded).groups.front();
    {
      const NoSync scope(sharded);
      gpt_loss(sharded, group->rank(), 0).backward();
      const Tensor own = kept.trained.front()->full.grad();
      EXPECT_FALSE((kept.staging.defined() ? kept.staging : own).is_cpu());
    }
    gpt_loss(sharded, group->rank(), 1).backward();
    EXPECT_TRUE(sharded.parameters().front().grad().is_cpu());
  });
}

TEST(Documented, norms_agree_with_torchs_where_nothing_is_sharded) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = options_over(group);
    options.sharding_strategy = ShardingStrategy::kNoShard;
    Sharded sharded(filled_gpt(), options);
    gpt_loss(sharded, group->rank(), 0).backward();
    const double expected = nn::utils::clip_grad_norm_(sharded.parameters(), 1e9);
    EXPECT_NEAR(sharded.clip_grad_norm_(1e9).item<double>(), expected, 1e-5 * expected);
  });
}

TEST(Documented, backward_pre_gathers_before_the_gradients_and_backward_post_after_them) {
  spawn_ranks(2, [](const Group& group) {
    // Returns whether the next unit was asked for when the gradients of one are computed.
    const auto asks_ahead = [&](BackwardPrefetch prefetch) {
      FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
      options.bucket_bytes = 0;
      options.backward_prefetch = prefetch;
      Gpt module = filled_gpt(4);
      Sharded sharded(module, options);
      for (int step = 0; step < 2; ++step) gpt_loss(sharded, group->rank(), step).backward();
      const Unit& next = *internal::engine_of(sharded).units()[2];
      EXPECT_EQ(sharded.name_of(next), "blocks.1");
      std::optional<UnitState> state;
      module->blocks->ptr<BlockImpl>(2)->up->weight.register_hook(
          [&](const Tensor&) { state = next.state; });
      gpt_loss(sharded, group->rank(), 2).backward();
      EXPECT_TRUE(state);
      return state != UnitState::kSharded;
    };
    EXPECT_TRUE(asks_ahead(BackwardPrefetch::kBackwardPre));
    EXPECT_FALSE(asks_ahead(BackwardPrefetch::kBackwardPost));
    EXPECT_FALSE(asks_ahead(BackwardPrefetch::kNone));
  });
}

TEST(Documented, a_barrier_holds_ranks_until_all_have_come) {
  std::atomic<int> came = 0;
  with_strategy(3, [&](StrategyOptions& options) {
    Strategy<Gpt> strategy(options);
    strategy.setup_environment();
    ++came;
    strategy.barrier("here");
    EXPECT_EQ(came, 3);
    strategy.teardown();
  });
}

TEST(Documented, an_optimizer_refuses_sharded_state_that_was_not_flattened) {
  spawn_ranks(2, [](const Group& group) {
    Sharded sharded(filled_gpt(), options_over(group));
    torch::optim::Adam adam(sharded.parameters(), 1e-3);
    gpt_loss(sharded, group->rank(), 0).backward();
    adam.step();
    const StateDict state = sharded_optim_state_dict(sharded, adam);
    EXPECT_ANY_THROW(load_optimizer_state_dict(adam, state));
    load_optimizer_state_dict(adam, flatten_sharded_optim_state_dict(state, sharded, adam));
  });
}

TEST(Documented, states_of_optimizers_are_not_copied) {
  spawn_ranks(1, [](const Group& group) {
    Sharded sharded(filled_gpt(), options_over(group));
    torch::optim::Adam adam(sharded.parameters(), 1e-3);
    gpt_loss(sharded, 0, 0).backward();
    adam.step();
    const StateDict state = sharded_optim_state_dict(sharded, adam);
    const auto& found = state.at("state").dict().at("head.weight").dict().at("exp_avg");
    ASSERT_NE(found.as_sharded(), nullptr);
    const Tensor before = found.as_sharded()->local.clone();
    gpt_loss(sharded, 0, 1).backward();
    adam.step();
    EXPECT_EQ(torch::equal(found.as_sharded()->local.to(before.device()), before), on_sim());
  });
}

// ---- checkpoints

// Calls of fsync, see the end of this file.
std::atomic<int> fsyncs;

// Returns this rank's part of a state: 4 MiB.
StateDict rows_in_state(const Group& group) {
  ShardedTensor rows;
  const std::vector<std::int64_t> whole{2 * group->size(), 512, 1024};
  rows.layout = shard_layout(whole, group->size());
  rows.part = group->rank();
  rows.local = torch::full({2, 512, 1024}, 3.5);
  return {{"weight", rows}, {"step", std::int64_t{7}}};
}

// Saves on two ranks, and on one as a file.
void saved(const std::filesystem::path& folder, const SaveOptions& options) {
  spawn_ranks(2, [&](const Group& group) { save(folder, rows_in_state(group), group, options); });
  spawn_ranks(1, [&](const Group& group) {
    save_file(folder.string() + ".pt", {{"step", std::int64_t{7}}}, group, options);
  });
}

TEST(SaveOptions, overwrite) {
  const TempDir dir;
  saved(dir.path() / "a", {});
  EXPECT_NO_THROW(saved(dir.path() / "a", {.overwrite = true}));
}

TEST(SaveOptions, sync) {
  const TempDir dir;
  fsyncs = 0;
  saved(dir.path() / "a", {.sync = false});
  EXPECT_EQ(fsyncs, 0);
}

// Returns the part of the file that the page cache has.
double cached(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(path));
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  TORCH_CHECK(fd >= 0 && map != MAP_FAILED, path.string());
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  TORCH_CHECK(::mincore(map, bytes, pages.data()) == 0);
  ::munmap(map, bytes);
  ::close(fd);
  const auto there = std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1U; });
  return static_cast<double>(there) / static_cast<double>(pages.size());
}

TEST(SaveOptions, page_cache) {
  const TempDir dir;
  struct statfs info {};
  ASSERT_EQ(::statfs(dir.path().c_str(), &info), 0);
  if (info.f_type != 0xEF53 && info.f_type != 0x58465342)
    GTEST_SKIP() << "the temporary folder is neither ext4 nor XFS";
  saved(dir.path() / "a", {.page_cache = PageCache::kNever});
  EXPECT_LT(cached(dir.path() / "a" / "__1_0.distcp"), 0.5);
}

TEST(SaveOptions, seal) {
  const TempDir dir;
  const auto files_with = [&](bool seal) {
    saved(dir.path() / "a", {.overwrite = true, .seal = seal});
    return std::distance(std::filesystem::directory_iterator(dir.path() / "a"), {});
  };
  EXPECT_EQ(files_with(true) - files_with(false), 1);
}

// Saves a tensor and a number, and shows where.
void loaded(const std::function<void(const std::filesystem::path&, const Group&)>& look) {
  const TempDir dir;
  const auto folder = dir.path() / "a";
  spawn_ranks(1, [&](const Group& group) {
    save(folder, {{"weight", torch::full({1000}, 3.5)}, {"step", std::int64_t{7}}}, group);
    look(folder, group);
  });
}

TEST(LoadOptions, strict) {
  loaded([](const std::filesystem::path& path, const Group& group) {
    StateDict state{{"weight", torch::zeros({1000})}, {"more", std::int64_t{1}}};
    LoadOptions options;
    options.strict = false;
    EXPECT_THAT(load(path, state, group, options).missing, ElementsAre("more"));
  });
}

TEST(LoadOptions, cast) {
  loaded([](const std::filesystem::path& path, const Group& group) {
    StateDict state{{"weight", torch::zeros({1000}, at::kBFloat16)}, {"step", std::int64_t{1}}};
    LoadOptions options;
    options.cast = false;
    EXPECT_THAT(error_of([&] { load(path, state, group, options); }),
                HasSubstr("'weight': dtype float32 in the checkpoint, bfloat16 here"));
  });
}

TEST(LoadOptions, verify) {
  loaded([](const std::filesystem::path& path, const Group& group) {
    std::fstream file(path / "__0_0.distcp", std::ios::binary | std::ios::in | std::ios::out);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const auto number = bytes.find(std::string("\0\0\x60\x40\0\0\x60\x40", 8));
    ASSERT_NE(number, std::string::npos);
    file.clear();
    file.seekp(static_cast<std::streamoff>(number) + 80);
    file.put('\x7f');
    file.close();
    StateDict state{{"weight", torch::zeros({1000})}, {"step", std::int64_t{1}}};
    LoadOptions options;
    options.verify = false;
    EXPECT_NO_THROW(load(path, state, group, options));
  });
}

TEST(LoadOptions, allowed_globals) {
  test::DcpFolder folder;
  folder.metadata.planner_data = test::dict_of(
      {{test::text("v"), test::call(test::global("mine", "Plan"), {test::integer(1)})}});
  folder.write();
  spawn_ranks(1, [&](const Group& group) {
    StateDict state;
    LoadOptions options;
    options.strict = false;
    options.allowed_globals = {"mine.Plan"};
    EXPECT_NO_THROW(load(folder.folder.path(), state, group, options));
  });
}

// Saves a GPT with its optimizer and the number of the step, and loads them into others.
void training_loaded(const TrainingLoadOptions& options,
                     const std::function<void(torch::optim::SGD&, TrainingState&)>& look) {
  const TempDir dir;
  spawn_ranks(2, [&](const Group& group) {
    const auto with_state = [&](double rate, const auto& use) {
      Sharded sharded(filled_gpt(), options_over(group));
      torch::optim::SGD optimizer(sharded.parameters(), rate);
      TrainingState state;
      state.model = &sharded;
      state.optimizers = {&optimizer};
      use(optimizer, state);
    };
    with_state(0.25, [&](auto&, TrainingState& state) {
      state.extra["note"] = std::int64_t{3};
      save(dir.path() / "a", state);
    });
    with_state(0.75, [&](torch::optim::SGD& optimizer, TrainingState& state) {
      load(dir.path() / "a", state, options);
      look(optimizer, state);
    });
  });
}

TEST(TrainingLoadOptions, optimizers) {
  TrainingLoadOptions options;
  options.optimizers = false;
  training_loaded(options, [](torch::optim::SGD& optimizer, TrainingState&) {
    EXPECT_EQ(optimizer.param_groups().front().options().get_lr(), 0.75);
  });
}

TEST(TrainingLoadOptions, extra) {
  TrainingLoadOptions options;
  options.extra = false;
  training_loaded(
      options, [](torch::optim::SGD&, TrainingState& state) { EXPECT_TRUE(state.extra.empty()); });
}

// ---- init_process_group

ProcessGroupOptions of_one_rank() {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  return options;
}

// Returns what rank 1 of two says that finds no other.
std::string error_of_a_rank_that_finds_nobody() {
  ProcessGroupOptions options;
  options.rank = 1;
  options.world_size = 2;
  options.master_addr = "127.0.0.1";
  options.master_port = 1;
  options.timeout = std::chrono::milliseconds(300);
  return error_of([&] { init_process_group(options); });
}

// Two ranks that meet at a store join a group.
void joined(const std::function<void(const Group&, int rank)>& look,
            const std::function<void(ProcessGroupOptions&)>& set = {}) {
  ProcessGroupOptions options;
  options.world_size = 2;
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.timeout = std::chrono::seconds(20);
  if (set) set(options);
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&look, rank, own = options]() mutable {
      own.rank = rank;
      EXPECT_NO_THROW(look(init_process_group(own), rank));
    });
  }
}

TEST(ProcessGroupOptions, backend) {
  ProcessGroupOptions options = of_one_rank();
  options.backend = "carrier_pigeon";
  EXPECT_THAT(error_of([&] { init_process_group(options); }), HasSubstr("carrier_pigeon"));
}

TEST(ProcessGroupOptions, device_id) {
  ProcessGroupOptions options = of_one_rank();
  options.device_id = at::kCUDA;
  EXPECT_THAT(error_of([&] { init_process_group(options); }), HasSubstr("link fsdp::cuda"));
}

TEST(ProcessGroupOptions, timeout) {
  ProcessGroupOptions options = of_one_rank();
  options.timeout = std::chrono::seconds(77);
  EXPECT_EQ(init_process_group(options)->timeout(), std::chrono::seconds(77));
}

TEST(ProcessGroupOptions, warn_after) {
  ProcessGroupOptions options = of_one_rank();
  options.warn_after = std::chrono::seconds(7);
  EXPECT_EQ(init_process_group(options)->warn_after(), std::chrono::seconds(7));
}

TEST(ProcessGroupOptions, direct_copies) {
  joined([](const Group& group, int) { EXPECT_FALSE(internal::has_direct_copies(*group)); },
         [](ProcessGroupOptions& options) { options.direct_copies = false; });
}

TEST(ProcessGroupOptions, rank) {
  joined([](const Group& group, int rank) { EXPECT_EQ(group->rank(), rank); });
}

TEST(ProcessGroupOptions, world_size) {
  joined([](const Group& group, int) { EXPECT_EQ(group->size(), 2); });
}

TEST(ProcessGroupOptions, store) {
  joined([](const Group& group, int) { EXPECT_NE(internal::store_of(*group), nullptr); });
}

TEST(ProcessGroupOptions, local_rank) {
  ProcessGroupOptions options = of_one_rank();
  options.local_rank = 3;
  EXPECT_EQ(init_process_group(options)->local_rank(), 3);
}

TEST(ProcessGroupOptions, master_addr) {
  EXPECT_THAT(error_of_a_rank_that_finds_nobody(), HasSubstr("127.0.0.1:1"));
}

TEST(ProcessGroupOptions, master_port) {
  EXPECT_THAT(error_of_a_rank_that_finds_nobody(), HasSubstr("127.0.0.1:1"));
}

TEST(ProcessGroupOptions, nccl) {
  ProcessGroupOptions options = of_one_rank();
  options.nccl.config.cga_cluster_size = 9;
  EXPECT_THAT(error_of([&] { init_process_group(options); }), HasSubstr("cga_cluster_size"));
}

TEST(ProcessGroupOptions, flight_record_prefix) {
  internal::BackendKind kind = internal::gloo_backend();
  kind.flight_record = [] { return "the last collectives"; };
  internal::register_backend("gloo_with_record", std::move(kind));
  const TempDir dir;
  joined([](const Group& group,
            int) { internal::monitor_of(*group).failed("a batch could not be read"); },
         [&](ProcessGroupOptions& options) {
           options.backend = "gloo_with_record";
           options.flight_record_prefix = dir.path() / "trace_";
         });
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "trace_1"));
}

}  // namespace
}  // namespace fsdp

// Stands before the C library's.
extern "C" int fsync(int fd) {
  ++fsdp::fsyncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
