// SPDX-License-Identifier: Apache-2.0
// Parameters that change after a module was wrapped: frozen, thawed, registered, written or hooked
// by the user.  Orders of such changes: sequences_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/param_groups.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace test;  // the modules
using Sharded = FullyShardedDataParallel<Gpt>;

std::map<std::string, Tensor> weights_of(Sharded& sharded) {
  std::map<std::string, Tensor> result;
  const FullParams scope = sharded.summon_full_params({.writeback = false});
  for (const auto& item : sharded.module()->named_parameters())
    result[item.key()] = item.value().detach().cpu().clone();
  return result;
}

// On 1, 2 and 3 ranks, with every strategy.
void everywhere(bool use_orig_params, const std::function<void(Sharded&, Gpt&, int rank)>& body) {
  for (const int world_size : {1, 2, 3}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}) {
      SCOPED_TRACE(std::string(name_of(strategy)) + " on " + std::to_string(world_size));
      spawn_ranks(world_size, [&](const Group& group) {
        Gpt module = filled_gpt();
        FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
        options.use_orig_params = use_orig_params;
        options.sharding_strategy = strategy;
        options.node_size = 1;
        Sharded sharded(module, options);
        body(sharded, module, group->rank());
      });
    }
  }
}

void set_trainable(nn::Module& module, bool on) {
  for (Tensor& parameter : module.parameters()) parameter.set_requires_grad(on);
}

TEST(Freezing, what_is_frozen_can_be_summoned_and_does_not_move) {
  everywhere(/*use_orig_params=*/true, [](Sharded& sharded, Gpt& module, int rank) {
    torch::optim::AdamW optimizer(sharded.parameters(),
                                  torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    const auto step = [&](int number) {
      optimizer.zero_grad();
      gpt_loss(sharded, rank, number).backward();
      optimizer.step();
    };
    step(0);
    const Tensor frozen = module->blocks->ptr<BlockImpl>(0)->up->weight;
    Tensor(frozen).set_requires_grad(false);
    sharded.apply([](nn::Module&) {});
    const auto before = weights_of(sharded);
    step(1);
    step(2);
    auto after = weights_of(sharded);
    for (const auto& [name, weight] : before) {
      EXPECT_EQ(distance(after.at(name), weight) == 0, name == "blocks.0.up.weight") << name;
    }
    Tensor(frozen).set_requires_grad(true);
    step(3);
    EXPECT_NE(
        distance(weights_of(sharded).at("blocks.0.up.weight"), before.at("blocks.0.up.weight")), 0);
    sharded.zero_grad();
    for (const auto& [name, shard] : sharded.named_parameters())
      EXPECT_FALSE(shard.grad().defined()) << name;
  });
}

TEST(Freezing, a_module_frozen_from_the_start_may_be_thawed_and_trains_then) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    set_trainable(*module, false);
    set_trainable(*module->head, true);
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const auto before = weights_of(sharded);
    const auto step = [&](int number) {
      optimizer.zero_grad();
      gpt_loss(sharded, group->rank(), number).backward();
      optimizer.step();
    };
    step(0);
    for (const auto& [name, weight] : weights_of(sharded))
      EXPECT_EQ(distance(weight, before.at(name)) != 0, name == "head.weight") << name;
    set_trainable(*module, true);
    step(1);
    for (const auto& [name, weight] : weights_of(sharded))
      EXPECT_NE(distance(weight, before.at(name)), 0) << name;
  });
}

TEST(Freezing, a_flat_unit_follows_as_a_whole_or_says_what_to_do) {
  everywhere(/*use_orig_params=*/false, [](Sharded& sharded, Gpt& module, int rank) {
    torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
    const auto step = [&](int number) {
      optimizer.zero_grad();
      gpt_loss(sharded, rank, number).backward();
      optimizer.step();
    };
    step(0);
    const auto block = module->blocks->ptr<BlockImpl>(1);
    block->up->weight.set_requires_grad(false);
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, rank, 1); }),
                AllOf(HasSubstr("unit 'blocks.1'"), HasSubstr("('blocks.1.up.weight')"),
                      HasSubstr("set use_orig_params"), HasSubstr("all parameters of a unit")));
    set_trainable(*block, false);
    const auto before = weights_of(sharded);
    step(1);
    for (const auto& [name, weight] : weights_of(sharded))
      EXPECT_EQ(distance(weight, before.at(name)) == 0, name.rfind("blocks.1.", 0) == 0) << name;
    // By the optimizer's tensor.
    for (auto& [name, flat] : sharded.named_parameters()) {
      if (name == "blocks.1._flat_param") Tensor(flat).set_requires_grad(true);
    }
    step(2);
    EXPECT_TRUE(block->up->weight.requires_grad());
    for (const auto& [name, weight] : weights_of(sharded))
      EXPECT_NE(distance(weight, before.at(name)), 0) << name;
  });
}

TEST(Freezing, an_unreduced_gradient_has_to_go_first) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    {
      const NoSync silent(sharded);
      gpt_loss(sharded, group->rank(), 0).backward();
    }
    module->head->weight.set_requires_grad(false);
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, group->rank(), 1); }),
                AllOf(HasSubstr("'head.weight' was frozen"), HasSubstr("zero_grad()")));
    sharded.zero_grad();
    gpt_loss(sharded, group->rank(), 1).backward();
    for (const auto& [name, shard] : sharded.named_parameters())
      EXPECT_EQ(shard.grad().defined(), name != "head.weight") << name;
  });
}

TEST(Freezing, ranks_that_freeze_different_parameters_are_told) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    for (int step = 0; step < 3; ++step) gpt_loss(sharded, group->rank(), step).backward();
    if (group->rank() == 1) module->blocks->ptr<BlockImpl>(0)->up->weight.set_requires_grad(false);
    const std::string error = error_of([&] { gpt_loss(sharded, group->rank(), 3).backward(); });
    if (group->rank() == 1) {
      EXPECT_THAT(error, HasSubstr("parameters 0-7, 9-11 of 12 train"));
    }
  });
}

TEST(Freezing, frozen_during_forward_is_frozen_for_its_backward) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    const auto tokens = random_tokens({2, 9}, 53, 1);
    const auto toggled = [](bool head) {
      return [head](GptImpl& gpt, const Tensor& input) {
        gpt.head->weight.set_requires_grad(head);
        gpt.emb->weight.set_requires_grad(!head);
        return gpt.forward(input);
      };
    };
    for (const bool head : {true, false, true}) {
      sharded.zero_grad();
      next_token_loss(sharded.call(toggled(head), tokens), tokens).backward();
      for (const auto& [name, shard] : sharded.named_parameters()) {
        const bool trains = name == "head.weight" ? head : name == "emb.weight" ? !head : true;
        EXPECT_EQ(shard.grad().defined(), trains) << name;
        if (shard.grad().defined() && trains && shard.numel() > 20) {
          EXPECT_NE(shard.grad().abs().max().item<float>(), 0) << name;
        }
      }
      for (const auto& item : module->named_parameters())
        EXPECT_TRUE(!item.value().grad().defined() || item.value().grad().storage().nbytes() == 0)
            << item.key();
    }
  });
}

TEST(Changed, a_parameter_registered_after_wrapping_is_named) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    module->blocks->ptr<BlockImpl>(0)->register_parameter("lora", torch::ones({2}));
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, group->rank(), 0); }),
                AllOf(HasSubstr("'blocks.0.lora'"), HasSubstr("registered after")));
  });
}

TEST(Changed, a_module_that_was_replaced_is_named) {
  spawn_ranks(1, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    module->blocks->ptr<BlockImpl>(0)->unregister_module("up");
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, group->rank(), 0); }),
                AllOf(HasSubstr("'blocks.0.up.weight'"), HasSubstr("not registered")));
  });
}

TEST(Changed, writes_through_an_older_tensor_of_a_parameter_are_found) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    const Tensor alias = module->head->weight.detach();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    gpt_loss(sharded, group->rank(), 0).backward();
    EXPECT_EQ(alias.sum().item<float>(), filled_gpt()->head->weight.sum().item<float>());
    alias.zero_();
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, group->rank(), 0); }),
                AllOf(HasSubstr("'head.weight'"), HasSubstr("summon_full_params")));
  });
}

TEST(Changed, hooks_belong_to_the_parameters_of_the_module) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    int seen = 0;
    module->head->weight.register_hook([&](const Tensor& gradient) {
      ++seen;
      EXPECT_EQ(gradient.sizes(), at::IntArrayRef({53, 24}));
      return gradient * 0;
    });
    gpt_loss(sharded, group->rank(), 0).backward();
    EXPECT_EQ(seen, 1);
    for (const auto& [name, shard] : sharded.named_parameters()) {
      if (name == "head.weight") {
        EXPECT_EQ(shard.grad().abs().sum().item<float>(), 0);
      }
      if (name == "emb.weight")
        Tensor(shard).register_hook([](const Tensor& gradient) { return gradient; });
    }
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, group->rank(), 0); }),
                AllOf(HasSubstr("shard of parameter 'emb.weight'"), HasSubstr("hook")));
  });
}

struct ShapesImpl : nn::Module {
  ShapesImpl() {
    small = register_parameter("small", torch::ones({2, 5, 13}));
    bias = register_parameter("bias", torch::ones({7}));
    scale = register_parameter("scale", torch::ones({}));
  }
  Tensor forward(const Tensor& x) { return x * small.sum() + bias.sum() * scale; }
  Tensor small, bias, scale;
};
TORCH_MODULE(Shapes);

TEST(ParamGroups, shards_know_the_shape_of_their_parameter) {
  for (const int world_size : {1, 2, 3, 4}) {
    spawn_ranks(world_size, [&](const Group& group) {
      FullyShardedDataParallel<Shapes> sharded(Shapes(), options_over(group));
      std::map<std::string, std::vector<std::int64_t>> shapes;
      for (const auto& [name, shard] : sharded.named_parameters())
        shapes[name] = original_shape(shard);
      EXPECT_EQ(shapes["small"], (std::vector<std::int64_t>{2, 5, 13}));
      EXPECT_EQ(shapes["bias"], (std::vector<std::int64_t>{7}));
      EXPECT_EQ(shapes["scale"], (std::vector<std::int64_t>{}));
      const auto options = torch::optim::AdamWOptions(0.1).weight_decay(0.25);
      auto groups = param_groups(sharded, options);
      ASSERT_EQ(groups.size(), 2U);
      const auto decay = [](const torch::optim::OptimizerParamGroup& part) {
        return static_cast<const torch::optim::AdamWOptions&>(part.options()).weight_decay();
      };
      EXPECT_EQ(groups[0].params().size(), 1U);
      EXPECT_EQ(decay(groups[0]), 0.25);
      EXPECT_EQ(groups[1].params().size(), 2U);
      EXPECT_EQ(decay(groups[1]), 0);
      torch::optim::AdamW optimizer(std::move(groups), options);
      sharded.forward(torch::ones({1}, test::device_of_rank(group->rank()))).sum().backward();
      optimizer.step();
      EXPECT_EQ(original_shape(torch::ones({3, 2})), (std::vector<std::int64_t>{3, 2}));
    });
  }
}

TEST(ParamGroups, flat_tensors_have_no_shape_of_a_parameter) {
  spawn_ranks(1, [&](const Group& group) {
    FsdpOptions options = options_over(group);
    options.use_orig_params = false;
    FullyShardedDataParallel<Shapes> sharded(Shapes(), options);
    EXPECT_THAT(error_of([&] { original_shape(sharded.parameters().front()); }),
                HasSubstr("set use_orig_params"));
    EXPECT_THAT(error_of([&] { (void)param_groups(sharded, torch::optim::AdamWOptions()); }),
                HasSubstr("set use_orig_params"));
  });
}

}  // namespace
}  // namespace fsdp
