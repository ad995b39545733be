// SPDX-License-Identifier: Apache-2.0
// The parts around the engine, on sharded modules: recomputation, optimizers, loss scaling, manual
// wrapping.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/grad_scaler.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/optim/adamw.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp {
using namespace internal;
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct LayerImpl : nn::Module {
  explicit LayerImpl(std::int64_t width, double dropout = 0)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        in(register_module("in", nn::Linear(width, 3 * width))),
        out(register_module("out", nn::Linear(3 * width, width))),
        drop(register_module("drop", nn::Dropout(dropout))) {}
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return x + drop(out(torch::gelu(in(norm(x)))));
  }
  nn::LayerNorm norm;
  nn::Linear in;
  nn::Linear out;
  nn::Dropout drop;
  int calls = 0;
};
TORCH_MODULE(Layer);

struct NetImpl : nn::Module {
  explicit NetImpl(double dropout = 0) {
    for (int i = 0; i < 3; ++i) layers->push_back(wrap(Layer(5, dropout)));
    register_module("layers", layers);
    head = register_module("head", nn::Linear(5, 7));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = checkpoint_module(std::dynamic_pointer_cast<LayerImpl>(layer), x);
    }
    return head(x);
  }
  std::vector<int> calls() const {
    std::vector<int> result;
    for (const auto& layer : *layers) result.push_back(layer->as<LayerImpl>()->calls);
    return result;
  }
  nn::ModuleList layers;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Net);

Net filled_net(double dropout = 0) {
  Net net(dropout);
  fill_parameters(*net);
  return net;
}

FsdpOptions options_for(const Group& group) {
  FsdpOptions options;
  options.process_group = group;
  options.device_id = test::device_id_of_rank(group->rank());
  options.auto_wrap_policy = module_wrap_policy<Layer>();
  options.use_orig_params = true;
  return options;
}

at::Tensor input_of(int rank, int step) {
  return random_values({4, 5}, static_cast<std::uint64_t>(10 * step + rank + 1));
}

// Returns the gradients of some steps, without stepping.
std::vector<at::Tensor> sharded_gradients(Net net, const FsdpOptions& options, int steps = 3) {
  FullyShardedDataParallel<Net> sharded(net, options);
  std::vector<at::Tensor> result;
  for (int step = 0; step < steps; ++step) {
    const int rank = options.process_group->rank();
    sharded.forward(input_of(rank, step)).square().mean().backward();
    for (const auto& parameter : sharded.parameters()) {
      result.push_back(parameter.grad().clone());
      parameter.mutable_grad() = at::Tensor();
    }
  }
  return result;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

TEST(ShardedParts, the_checkpointing_policy_recomputes_what_it_wants_with_the_same_gradients) {
  for (const int world_size : {1, 2, 3}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      spawn_ranks(world_size, [&](const Group& group) {
        auto options = options_for(group);
        options.sharding_strategy = strategy;
        const auto expected = sharded_gradients(filled_net(), options);
        auto net = filled_net();
        const auto* second = net->layers[1].get();
        options.activation_checkpointing_policy = [second](const nn::Module& module) {
          return &module == second;
        };
        expect_equal(sharded_gradients(net, options), expected);
        EXPECT_THAT(net->calls(), ElementsAre(3, 6, 3));
        options.activation_checkpointing_policy = [](const nn::Module&) { return true; };
        auto all = filled_net();
        expect_equal(sharded_gradients(all, options), expected);
        EXPECT_THAT(all->calls(), ElementsAre(6, 6, 6));
      });
    }
  }
}

struct Heard final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

TEST(ShardedParts, a_policy_that_recomputes_nothing_is_said_once) {
  spawn_ranks(1, [](const Group& group) {
    Heard heard;
    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
    const auto forward_twice = [&](const CheckpointPolicy& policy) {
      heard.text.clear();
      FsdpOptions options = options_for(group);
      options.activation_checkpointing_policy = policy;
      FullyShardedDataParallel<test::Gpt> sharded(test::Gpt(2), options);
      for (int step = 0; step < 2; ++step) sharded.forward(random_tokens({1, 4}, 53, 1));
      return heard.text;
    };
    const std::string said = forward_twice(instances_of<test::BlockImpl>());
    EXPECT_THAT(said, HasSubstr("selects 2 modules ('blocks.0', ...)"));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
    EXPECT_EQ(forward_twice([](const nn::Module&) { return false; }), "");
    EXPECT_EQ(forward_twice({}), "");
  });
}

TEST(ShardedParts, recomputation_drops_the_same_elements) {
  // Ranks that are threads share a generator, so use one rank.
  spawn_ranks(1, [](const Group& group) {
    auto options = options_for(group);
    torch::manual_seed(3);
    const auto expected = sharded_gradients(filled_net(0.4), options);
    options.activation_checkpointing_policy = instances_of<Layer>();
    torch::manual_seed(3);
    expect_equal(sharded_gradients(filled_net(0.4), options), expected);
  });
}

TEST(ShardedParts, checkpointing_without_a_gradient_is_a_plain_forward) {
  spawn_ranks(2, [](const Group& group) {
    auto options = options_for(group);
    options.activation_checkpointing_policy = instances_of<Layer>();
    auto net = filled_net();
    FullyShardedDataParallel<Net> sharded(net, options);
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(sharded.forward(input_of(0, 0)).requires_grad());
    EXPECT_THAT(net->calls(), ElementsAre(1, 1, 1));
  });
}

// The same training on every rank, with the optimizers of both libraries.
TEST(ShardedParts, the_fused_adamw_trains_sharded_as_libtorchs_does_unsharded) {
  for (const bool use_orig_params : {true, false}) {
    for (const int world_size : {1, 2, 3, 4}) {
      spawn_ranks(world_size, [&](const Group& group) {
        auto options = options_for(group);
        options.use_orig_params = use_orig_params;
        auto reference = filled_net();
        FullyShardedDataParallel<Net> sharded(filled_net(), options);
        const auto adam = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
        torch::optim::AdamW expected(reference->parameters(), adam);
        optim::AdamW actual(sharded.parameters(), adam);
        for (int step = 0; step < 5; ++step) {
          at::Tensor wanted;
          for (int rank = 0; rank < world_size; ++rank) {
            const auto loss = reference(input_of(rank, step)).square().mean();
            if (rank == group->rank()) wanted = loss.detach();
            (loss / world_size).backward();
          }
          const auto loss = sharded.forward(input_of(group->rank(), step)).square().mean();
          EXPECT_TRUE(torch::allclose(loss, wanted, 1e-5, 1e-6)) << "step " << step;
          loss.backward();
          expected.step();
          actual.step();
          expected.zero_grad();
          actual.zero_grad();
        }
      });
    }
  }
}

TEST(ShardedParts, a_loss_that_overflows_on_one_rank_skips_the_step_on_all) {
  for (const int world_size : {2, 3, 4}) {
    spawn_ranks(world_size, [&](const Group& group) {
      FsdpOptions options = options_for(group);
      if (world_size == 4) {
        options.sharding_strategy = ShardingStrategy::kHybridShard;
        options.node_size = 2;
      }
      FullyShardedDataParallel<Net> sharded(filled_net(), options);
      optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));
      // Without a group the scaler finds that of the shards.
      GradScaler scaler({.init_scale = 1024,
                         .growth_interval = 100,
                         .process_group = world_size == 2 ? group : nullptr});
      std::vector<bool> stepped;
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        auto loss = sharded.forward(input_of(group->rank(), step)).square().mean();
        // Infinite in a single row of one parameter, which only its owner sees.
        if (step == 1 && group->rank() == 0) {
          loss = loss + sharded.forward(input_of(0, 0)).select(1, 0).sum() *
                            std::numeric_limits<float>::infinity();
        } else if (step == 1) {
          loss = loss + sharded.forward(input_of(0, 0)).select(1, 0).sum();
        }
        scaler.scale(loss).backward();
        scaler.unscale_(optimizer);
        stepped.push_back(scaler.step(optimizer));
        scaler.update();
      }
      EXPECT_THAT(stepped, ElementsAre(true, false, true));
      EXPECT_EQ(scaler.get_scale(), 512);
      for (const auto& parameter : sharded.parameters()) {
        EXPECT_TRUE(torch::isfinite(parameter).all().item<bool>());
      }
    });
  }
}

TEST(ShardedParts, modules_marked_by_wrap_become_units) {
  spawn_ranks(2, [](const Group& group) {
    auto options = options_for(group);
    options.auto_wrap_policy = wrapped_policy();
    const auto build = [] {
      const EnableWrap scope;
      return filled_net();
    };
    FullyShardedDataParallel<Net> sharded(build(), options);
    EXPECT_THAT(sharded.unit_names(), ElementsAre("", "layers.0", "layers.1", "layers.2"));
    FullyShardedDataParallel<Net> unmarked(filled_net(), options);
    EXPECT_THAT(unmarked.unit_names(), ElementsAre(""));
  });
}

Net net_on_meta() {
  const MetaDevice meta;
  return Net();
}

// Fills a module's own parameters as fill_parameters(root) does.
void fill_own_parameters(nn::Module& module, const nn::Module& root) {
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (const auto& item : root.named_parameters()) {
    const auto values = random_values(item.value().sizes().vec(), seed++) * 0.3;
    for (torch::Tensor own : module.parameters(/*recurse=*/false)) {
      if (own.is_same(item.value())) own.copy_(values);
    }
  }
}

TEST(ShardedParts, a_module_on_the_meta_device_trains_as_param_init_fn_made_it) {
  for (const int world_size : {1, 2, 3}) {
    spawn_ranks(world_size, [&](const Group& group) {
      auto options = options_for(group);
      const auto expected = sharded_gradients(filled_net(), options);
      auto net = net_on_meta();
      EXPECT_TRUE(net->head->weight.is_meta());
      options.param_init_fn = [&](nn::Module& module) {
        to_empty(module, torch::kCPU, /*recurse=*/false);
        fill_own_parameters(module, *net);
      };
      expect_equal(sharded_gradients(net, options), expected);
    });
  }
}

TEST(ShardedParts, ranks_that_initialize_by_themselves_take_the_values_of_rank_0) {
  for (const int world_size : {2, 3}) {
    spawn_ranks(world_size, [&](const Group& group) {
      auto options = options_for(group);
      options.sync_module_states = true;
      auto net = net_on_meta();
      FullyShardedDataParallel<Net> sharded(net, options);
      const auto scope = sharded.summon_full_params();
      for (const auto& item : net->named_parameters()) {
        auto most = item.value().detach().clone();
        auto least = most.clone();
        all_reduce(group, most, ReduceOp::kMax, "the most").wait();
        all_reduce(group, least, ReduceOp::kMin, "the least").wait();
        EXPECT_TRUE(torch::equal(most, least)) << item.key();
        if (item.value().dim() < 2) continue;
        EXPECT_GT(most.std().item<double>(), 0.05) << item.key();
      }
    });
  }
}

}  // namespace
}  // namespace fsdp
