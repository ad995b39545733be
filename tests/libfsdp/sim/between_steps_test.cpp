// SPDX-License-Identifier: Apache-2.0
// What a program may do between steps, and beside them, on simulated devices.
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "libfsdp/grad_scaler.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/state/state_skeleton.h"
#include "libfsdp/optim_state_dict.h"
#include "libfsdp/reduce.h"
#include "libfsdp/state_dict.h"
#include "tests/libfsdp/sim/scene.h"
#include "tests/libfsdp/sim/stack.h"

namespace fsdp::test {
namespace {

void evaluate(ShardedGpt& sharded, const Group& group, int step) {
  const torch::NoGradGuard no_grad;
  sharded.forward(device_tokens(group->rank(), step));
}

void train_steps(ShardedGpt& sharded, const Group& group, int steps) {
  torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    token_loss(sharded, group->rank(), step).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

// ---- after an evaluation

// Whether shards are offloaded, and whether forwards gather ahead.
class SimEvaluation : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  Scene scene() const {
    Scene result;
    std::tie(result.options.cpu_offload.offload_params, result.options.forward_prefetch) =
        GetParam();
    return result;
  }
};

TEST_P(SimEvaluation, then_a_load) {
  run(scene(), [](ShardedGpt& sharded, const Group& group) {
    const StateDict state = sharded.state_dict();
    for (int i = 0; i < 3; ++i) {
      evaluate(sharded, group, i);
      StateDict other;
      for (const auto& [key, value] : state.entries())
        other.set(key, *value.as_tensor() * (1 + 0.1 * i));
      sharded.load_state_dict(other);
    }
  });
}

TEST_P(SimEvaluation, then_a_write_to_shards) {
  run(scene(), [](ShardedGpt& sharded, const Group& group) {
    for (int i = 0; i < 3; ++i) {
      evaluate(sharded, group, i);
      const torch::NoGradGuard no_grad;
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
    }
  });
}

TEST_P(SimEvaluation, then_a_summon) {
  run(scene(), [](ShardedGpt& sharded, const Group& group) {
    for (int i = 0; i < 3; ++i) {
      evaluate(sharded, group, i);
      FullParams full = sharded.summon_full_params();
      {
        const torch::NoGradGuard no_grad;
        for (Tensor& parameter : sharded.module()->parameters()) parameter.add_(0.01);
      }
      full.close();
    }
  });
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<bool, bool>>& info) {
  const auto [offloaded, ahead] = info.param;
  return std::string(offloaded ? "offloaded" : "on_the_device") + (ahead ? "_ahead" : "");
}

INSTANTIATE_TEST_SUITE_P(Shards, SimEvaluation, testing::Combine(testing::Bool(), testing::Bool()),
                         name_of_case);

// ---- gradients and state

TEST(SimSteps, gradients_outlive_their_step) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    std::vector<Tensor> kept;
    for (int step = 0; step < 4; ++step) {
      token_loss(sharded, group->rank(), step).backward();
      std::vector<Tensor> now;
      for (const Tensor& shard : sharded.parameters()) now.push_back(shard.grad());
      for (std::size_t i = 0; i < kept.size(); ++i) kept[i] + now[i];
      kept = now;
      for (Tensor& shard : sharded.parameters()) shard.mutable_grad() = Tensor();
    }
  });
}

TEST(SimSteps, forwards_without_backwards) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    for (int step = 0; step < 3; ++step) sharded.forward(device_tokens(group->rank(), step));
  });
}

TEST(SimSteps, scaled_gradients) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    GradScaler scaler({.init_scale = 8, .process_group = group});
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      scaler.scale(token_loss(sharded, group->rank(), step)).backward();
      scaler.unscale_(optimizer);
      sharded.clip_grad_norm_(1.0);
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
    }
  });
}

TEST(SimSteps, a_communication_hook) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    sharded.register_comm_hook([](const Group& ranks, Tensor& unsharded, Tensor& mean) {
      reduce_scatter(ranks, mean, unsharded, "hook").wait();
      mean.div_(ranks->size());
    });
    train_steps(sharded, group, 3);
  });
}

TEST(SimSteps, a_trace) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    sharded.start_trace();
    train_steps(sharded, group, 2);
  });
}

// Gathers that were started ahead in vain read the shards, whatever keeps the others gathered.
TEST(SimSteps, shards_are_written_after_a_backward_without_synchronization) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
  scene.options.sharding_strategy = ShardingStrategy::kShardGradOp;
  run(scene, [](const Group& group, const FsdpOptions& options) {
    Stack module;
    fill_parameters(*module);
    FullyShardedDataParallel<Stack> sharded(module, options);
    name_lanes(sharded);
    std::vector<torch::Tensor> values;
    for (int i = 0; i < 4; ++i) values.push_back(device_values({3, 16}, group->rank(), i));
    sim::synchronize(group->rank());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool accumulates = i % 2 == 1;
      module->order = accumulates ? Order{3, 4, 5} : Order{0, 1, 2, 3, 4, 5};
      std::optional<NoSync> no_sync;
      if (accumulates) no_sync.emplace(sharded);
      sharded.forward(values[i].clone().requires_grad_()).square().mean().backward();
      no_sync.reset();
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& shard : sharded.parameters()) shard.mul_(0.99);
    }
  });
}

// A forward writes parameters of a unit that its backward gathers again.
void write_in_forward(const std::function<void(torch::nn::LinearImpl&)>& write) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
  // Memory that is used again orders gathers, too.
  scene.options.limit_all_gathers = false;
  run(scene, [&](const Group& group, const FsdpOptions& options) {
    Stack module;
    fill_parameters(*module);
    module->before = [&](int layer, torch::nn::LinearImpl& linear, const torch::Tensor& x) {
      if (layer == 4) write(linear);
      return x;
    };
    FullyShardedDataParallel<Stack> sharded(module, options);
    name_lanes(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    std::vector<torch::Tensor> values;
    for (int i = 0; i < 3; ++i) values.push_back(device_values({3, 16}, group->rank(), i));
    sim::synchronize(group->rank());
    for (const torch::Tensor& value : values) {
      sharded.forward(value.clone().requires_grad_()).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(SimSteps, forwards_that_write_parameters) {
  write_in_forward([](torch::nn::LinearImpl& layer) { layer.weight.data().mul_(0.9); });
}
// The backward uses the weight, and gathers both.
TEST(SimSteps, forwards_that_replace_parameters) {
  write_in_forward(
      [](torch::nn::LinearImpl& layer) { layer.bias.set_data(layer.bias.data() * 0.9); });
}

// ---- values that travel between ranks

TEST(SimValues, are_reduced_and_used_at_once) {
  run(Scene(), [](const Group& group, const FsdpOptions&) {
    const torch::Tensor mine = device_values({64}, group->rank(), 0);
    const torch::Tensor mean = reduce(mine, group);
    EXPECT_NEAR((mean * 2 - mine).sum().item<double>(),
                device_values({64}, 1 - group->rank(), 0).sum().item<double>(), 1e-5);
  });
}

TEST(SimValues, are_multiplied_and_used_at_once) {
  run(Scene(), [](const Group& group, const FsdpOptions&) {
    const torch::Tensor mine = device_values({64}, group->rank(), 0);
    const torch::Tensor product = reduce(mine, group, ReduceKind::kProduct);
    const torch::Tensor other = device_values({64}, 1 - group->rank(), 0);
    EXPECT_NEAR((product - mine * other.to(mine.device())).abs().max().item<double>(), 0, 1e-6);
  });
}

TEST(SimValues, of_gradients_are_counted_and_used_at_once) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    for (int step = 0; step < 3; ++step) {
      token_loss(sharded, group->rank(), step).backward();
      EXPECT_EQ(sharded.clip_grad_norm_(1e9, 0).item<double>(),
                static_cast<double>(sharded.parameters().size()));
      sharded.zero_grad();
    }
  });
}

TEST(SimValues, are_broadcast_and_read_at_once) {
  run(Scene(), [](const Group& group, const FsdpOptions&) {
    const torch::Tensor mine = device_values({64}, group->rank(), 0);
    const StateValue found = internal::broadcast_value(group, StateValue(mine), 1, "a value");
    EXPECT_TRUE(torch::equal(*found.as_tensor(), device_values({64}, 1, 0).cpu()));
  });
}

TEST(SimValues, of_an_optimizer_are_scattered_and_used_at_once) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      token_loss(sharded, group->rank(), step).backward();
      optimizer.step();
      optimizer.zero_grad();
      const StateDict full = full_optim_state_dict(sharded, optimizer, /*rank0_only=*/true);
      load_optimizer_state_dict(optimizer, scatter_full_optim_state_dict(full, sharded, optimizer));
    }
  });
}

// ---- modules

TEST(SimModule, on_its_device_while_another_one_is_current) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
  constexpr int kOther = 3;
  sim::reset_counters(kOther);
  run(scene, [](const Group& group, FsdpOptions options) {
    const c10::Device device = *options.device_id;
    options.device_id = std::nullopt;
    sim::set_current_device(kOther);
    Stack module;
    fill_parameters(*module);
    module->to(device);
    FullyShardedDataParallel<Stack> sharded(module, options);
    name_lanes(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = random_values({3, 16}, static_cast<std::uint64_t>(step + group->rank()));
      sharded.forward(x).square().mean().backward();
      sharded.clip_grad_norm_(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  EXPECT_EQ(sim::counters(kOther).kernels, 0);
  EXPECT_EQ(sim::counters(kOther).memory.allocations, 0);
}

TEST(SimModule, that_is_destroyed_with_work_in_flight) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
  scene.options.forward_prefetch = true;
  run(scene, [](const Group& group, const FsdpOptions& options) {
    for (int i = 0; i < 3; ++i) {
      Stack module;
      fill_parameters(*module);
      FullyShardedDataParallel<Stack> sharded(module, options);
      sharded.forward(device_values({3, 16}, group->rank(), i)).square().mean().backward();
      module->order = {0, 1, 2};
      sharded.forward(device_values({3, 16}, group->rank(), i)).square().mean();
    }
  });
}

// Recovery is the same on every device: all ranks throw, none of them leaves.
TEST(SimModule, whose_forward_throws_is_trained_on) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
  scene.options.forward_prefetch = true;
  run(scene, [](const Group& group, const FsdpOptions& options) {
    Stack module;
    fill_parameters(*module);
    FullyShardedDataParallel<Stack> sharded(module, options);
    name_lanes(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int i = 0; i < 12; ++i) {
      module->throws = i % 3 == 1;
      module->order = module->throws ? Order{0, 1, 2} : Order{0, 1, 2, 3, 4, 5};
      const auto step = [&] {
        sharded.forward(device_values({3, 16}, group->rank(), i)).square().mean().backward();
        optimizer.step();
        optimizer.zero_grad();
      };
      if (module->throws) {
        EXPECT_THROW(step(), std::runtime_error);
      } else {
        step();
      }
    }
  });
}

}  // namespace
}  // namespace fsdp::test
