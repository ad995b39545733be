// SPDX-License-Identifier: Apache-2.0
// Modules sharded by composition, each with options of its own, against the unsharded module.
// PyTorch's fully_shard beside it: tests/parity.  Random orders of everything: sequences_test.cpp.
#include "libfsdp/fully_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;  // the modules
using Handle = std::shared_ptr<ShardedModule>;

FullyShardOptions composed_over(const Group& group) {
  FullyShardOptions options;
  options.process_group = group;
  options.device_id = test::device_id_of_rank(group->rank());
  options.node_size = 1;
  return options;
}

Tensor loss_of(Gpt& module, const Tensor& tokens) {
  const auto device = test::device_id_of_rank(0);
  return next_token_loss(
      module->forward(device ? tokens.to(module->parameters()[0].device()) : tokens).cpu(), tokens);
}

Tensor tokens_of(int rank, int step) {
  return random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
}

// Blocks, and the root around them.
Handle shard_blocks(Gpt& module, const FullyShardOptions& options) {
  for (const auto& block : *module->blocks) fully_shard(block, options);
  return fully_shard(module, options);
}

std::map<std::string, Tensor> weights_of(ShardedModule& sharded) {
  std::map<std::string, Tensor> result;
  const FullParams scope = sharded.summon_full_params({.writeback = false});
  for (const auto& item : sharded.module()->named_parameters())
    result[item.key()] = item.value().detach().cpu().clone();
  return result;
}

// Trains a module that `shard` has sharded beside one that is not.
void train_beside(int world_size, const std::function<Handle(Gpt&, const Group&)>& shard,
                  const std::function<void(Gpt&, ShardedModule&, int step)>& between = {}) {
  SCOPED_TRACE("world size " + std::to_string(world_size));
  spawn_ranks(world_size, [&](const Group& group) {
    Gpt module = filled_gpt(3);
    Gpt whole = filled_gpt(3);
    const Handle sharded = shard(module, group);
    const auto options = torch::optim::SGDOptions(0.05).momentum(0.5);
    torch::optim::SGD optimizer(sharded->parameters(), options);
    torch::optim::SGD whole_optimizer(whole->parameters(), options);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      whole_optimizer.zero_grad();
      for (int rank = 0; rank < world_size; ++rank)
        (loss_of(whole, tokens_of(rank, step)) / world_size).backward();
      loss_of(module, tokens_of(group->rank(), step)).backward();
      EXPECT_NEAR(sharded->clip_grad_norm_(0.5).item<double>(),
                  nn::utils::clip_grad_norm_(whole->parameters(), 0.5), 1e-5);
      optimizer.step();
      whole_optimizer.step();
      if (between) between(module, *sharded, step);
      const auto found = weights_of(*sharded);
      for (const auto& item : whole->named_parameters())
        EXPECT_LE(distance(found.at(item.key()), item.value().detach()), 3e-5)
            << item.key() << " after step " << step;
    }
  });
}

TEST(FullyShard, trains_as_the_module_does_without_sharding) {
  for (const int world_size : {1, 2, 3}) {
    train_beside(world_size, [](Gpt& module, const Group& group) {
      return shard_blocks(module, composed_over(group));
    });
  }
}

TEST(FullyShard, each_module_has_its_own_strategy) {
  for (const int world_size : {1, 2, 4}) {
    train_beside(world_size, [](Gpt& module, const Group& group) {
      FullyShardOptions options = composed_over(group);
      FullyShardOptions kept = options;
      kept.reshard_after_forward = false;
      FullyShardOptions copied = options;
      copied.sharding_strategy = ShardingStrategy::kNoShard;
      FullyShardOptions hybrid = options;
      hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
      if (group->size() % 2 == 0) hybrid.node_size = 2;
      fully_shard(module->blocks->ptr(0), kept);
      fully_shard(module->blocks->ptr(1), copied);
      fully_shard(module->blocks->ptr(2), hybrid);
      return fully_shard(module, options);
    });
  }
}

TEST(FullyShard, a_wrapper_takes_in_what_was_sharded_before) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt(2);
    FullyShardOptions inner = composed_over(group);
    inner.reshard_after_forward = false;
    const Handle block = fully_shard(module->blocks->ptr(0), inner);
    FullyShardedDataParallel<Gpt> sharded(module,
                                          options_over(group, module_wrap_policy<BlockImpl>()));
    EXPECT_THAT(sharded.unit_names(), ElementsAre("", "blocks.0", "blocks.1"));
    EXPECT_THAT(block->unit_names(), ElementsAre(""));
    gpt_loss(sharded, group->rank(), 0).backward();
    for (const auto& [name, parameter] : sharded.named_parameters())
      EXPECT_TRUE(parameter.grad().defined()) << name;
    EXPECT_TRUE(internal::engine_of(sharded).units()[2]->reshards_after_forward);
    EXPECT_FALSE(internal::engine_of(sharded).units()[1]->reshards_after_forward);
  });
}

TEST(FullyShard, a_forward_after_a_step_sees_the_step_whatever_ran_before_it) {
  for (const int world_size : {1, 2}) {
    train_beside(
        world_size,
        [](Gpt& module, const Group& group) { return shard_blocks(module, composed_over(group)); },
        [](Gpt& module, ShardedModule& sharded, int step) {
          const Tensor tokens = tokens_of(0, 50 + step);
          const torch::NoGradGuard no_grad;
          const Tensor before = loss_of(module, tokens);
          // The units of the last operators are still gathered.
          for (Tensor& shard : sharded.parameters()) shard.mul_(0.5);
          EXPECT_NE(loss_of(module, tokens).item<float>(), before.item<float>());
          for (Tensor& shard : sharded.parameters()) shard.mul_(2);
          EXPECT_EQ(loss_of(module, tokens).item<float>(), before.item<float>());
        });
  }
}

TEST(FullyShard, a_forward_that_threw_does_no_harm) {
  train_beside(
      2, [](Gpt& module, const Group& group) { return shard_blocks(module, composed_over(group)); },
      [](Gpt& module, ShardedModule&, int) {
        EXPECT_ANY_THROW(
            module->head(module->blocks->ptr<BlockImpl>(0)->forward(torch::ones({1, 2, 7}))));
      });
}

TEST(FullyShard, nobody_has_to_keep_the_result) {
  std::weak_ptr<ProcessGroup> left;
  spawn_ranks(1, [&](const Group& group) {
    Gpt module = filled_gpt(2);
    const auto parameters = shard_blocks(module, composed_over(group))->parameters();
    loss_of(module, tokens_of(0, 0)).backward();
    for (const Tensor& parameter : parameters) EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(FullyShard, an_inner_handle_is_about_its_module) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt(2);
    const FullyShardOptions options = composed_over(group);
    fully_shard(module->blocks->ptr(0), options);
    const Handle inner = fully_shard(module->blocks->ptr(1), options);
    const Handle outer = fully_shard(module, options);
    EXPECT_THAT(outer->unit_names(), ElementsAre("", "blocks.0", "blocks.1"));
    EXPECT_EQ(inner->parameters().size(), module->blocks->ptr(1)->parameters().size());
    const StateDict own = inner->state_dict();
    const StateDict all = outer->state_dict();
    EXPECT_EQ(own.size(), 12U);
    for (const auto& [key, value] : own.entries())
      EXPECT_TRUE(torch::equal(*value.as_tensor(), *all.at("blocks.1." + text_of(key)).as_tensor()))
          << text_of(key);

    // Its state alone is summoned, loaded, left unreduced and dropped.
    {
      const FullParams scope = inner->summon_full_params();
      EXPECT_EQ(module->blocks->ptr<BlockImpl>(1)->up->weight.storage().nbytes(), 24U * 96 * 4);
      EXPECT_EQ(module->blocks->ptr<BlockImpl>(0)->up->weight.storage().nbytes(), 0U);
    }
    StateDict doubled;
    for (const auto& [key, value] : own.entries()) doubled.set(key, *value.as_tensor() * 2);
    inner->load_state_dict(doubled);
    EXPECT_TRUE(torch::equal(*outer->state_dict().at("blocks.1.up.weight").as_tensor(),
                             *doubled.at("up.weight").as_tensor()));
    inner->set_requires_gradient_sync(false);
    loss_of(module, tokens_of(group->rank(), 0)).backward();
    EXPECT_THAT(error_of([&] { outer->clip_grad_norm_(1.0); }),
                HasSubstr("'blocks.1.ln1.weight' is not reduced yet"));
    EXPECT_TRUE(outer->parameters().front().grad().defined());
    inner->zero_grad();
    outer->clip_grad_norm_(1.0);

    torch::optim::Adam optimizer(inner->parameters(), 0.1);
    inner->set_requires_gradient_sync(true);
    loss_of(module, tokens_of(group->rank(), 1)).backward();
    optimizer.step();
    const StateDict state = optim_state_dict(*inner, optimizer);
    EXPECT_NE(state.at("state").dict().find("up.weight"), nullptr);
  });
}

TEST(FullyShard, errors_say_what_to_do) {
  spawn_ranks(1, [](const Group& group) {
    const FullyShardOptions options = composed_over(group);
    {
      Gpt module = filled_gpt(2);
      const Handle block = fully_shard(module->blocks->ptr(0), options);
      module->blocks->ptr<BlockImpl>(0)->forward(
          torch::ones({1, 2, 24}, block->module()->parameters()[0].device()));
      EXPECT_THAT(error_of([&] { fully_shard(module, options); }),
                  AllOf(HasSubstr("module 'blocks.0' ran a forward before"),
                        HasSubstr("before the first forward")));
    }
    {
      Gpt module = filled_gpt(2);
      const Handle block = fully_shard(module->blocks->ptr(0), options);
      module->blocks->ptr(0)->register_parameter("late", torch::ones({2}));
      EXPECT_THAT(error_of([&] { fully_shard(module, options); }),
                  HasSubstr("parameter 'blocks.0.late' was registered in 'blocks.0' after"));
    }
    {
      Gpt module = filled_gpt(2);
      const Handle block = fully_shard(module->blocks->ptr(0), options);
      internal::engine_of(*fully_shard(module, options));
      loss_of(module, tokens_of(0, 0));
      Handle outer = fully_shard(filled_gpt(1), options);
      EXPECT_THAT(error_of([&] { fully_shard(outer->module(), options); }),
                  HasSubstr("is sharded already"));
    }
    {
      Gpt module = filled_gpt(2);
      const Handle block = fully_shard(module->blocks->ptr(0), options);
      Handle outer = fully_shard(module, options);
      loss_of(module, tokens_of(0, 0));
      outer.reset();
      EXPECT_THAT(error_of([&] { block->parameters(); }),
                  HasSubstr("the sharded module around this one has been destroyed"));
      EXPECT_ANY_THROW(loss_of(module, tokens_of(0, 0)));
    }
    {
      Tied module;
      fully_shard(module->emb, options);
      module->mid->weight = module->mid->register_parameter("tied", module->emb->weight);
      EXPECT_THAT(error_of([&] { fully_shard(module, options); }), HasSubstr("is shared with"));
    }
  });
}

TEST(FullyShard, dtypes_are_those_of_each_module) {
  spawn_ranks(2, [](const Group& group) {
    struct NetImpl : nn::Module {
      NetImpl()
          : low(register_module("low", nn::Linear(4, 4))),
            norm(register_module("norm", nn::BatchNorm1d(4))),
            head(register_module("head", nn::Linear(4, 2))) {}
      Tensor forward(const Tensor& x) {
        seen = {low(x)};
        seen.push_back(norm(seen.back()));
        seen.push_back(head(seen.back()));
        return seen.back();
      }
      nn::Linear low;
      nn::BatchNorm1d norm;
      nn::Linear head;
      std::vector<Tensor> seen;
    };
    const auto net = std::make_shared<NetImpl>();
    fill_parameters(*net);
    FullyShardOptions options = composed_over(group);
    options.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    FullyShardOptions full = composed_over(group);
    full.mp_policy = {.param_dtype = at::kFloat};
    fully_shard(net->norm, full);
    options.mp_policy.output_dtype = at::kDouble;
    fully_shard(net->head, options);
    options.mp_policy.output_dtype.reset();
    const Handle sharded = fully_shard(net, options);
    const Tensor x = random_values({6, 4}, 3).to(internal::engine_of(*sharded).streams().device());
    net->forward(x).sum().backward();
    EXPECT_EQ(net->seen[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->seen[1].scalar_type(), at::kFloat);
    EXPECT_EQ(net->seen[2].scalar_type(), at::kDouble);
    // The statistics of the batch norm are its buffers.
    EXPECT_NE(distance(net->norm->running_mean, torch::zeros({4})), 0);
    for (const auto& [name, shard] : sharded->named_parameters())
      EXPECT_EQ(shard.grad().scalar_type(), at::kFloat) << name;
  });
}

TEST(FullyShard, a_module_that_is_called_casts_what_goes_in_and_comes_out) {
  spawn_ranks(1, [](const Group& group) {
    Block block(24);
    fill_parameters(*block);
    FullyShardOptions options = composed_over(group);
    options.mp_policy = {.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
    const Handle sharded = fully_shard(block, options);
    const Tensor x =
        random_values({1, 3, 24}, 5).to(internal::engine_of(*sharded).streams().device());
    EXPECT_THAT(error_of([&] { block->forward(x); }),
                AllOf(HasSubstr("has an output_dtype"), HasSubstr("fsdp::call(")));
    EXPECT_EQ(call(*block, x).scalar_type(), at::kFloat);
    EXPECT_EQ(x.scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace fsdp
