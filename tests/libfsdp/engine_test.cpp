// SPDX-License-Identifier: Apache-2.0
// Compares sharded training with unsharded: gradients and weights after every step.
#include "libfsdp/internal/engine/engine.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp {
using namespace internal;
namespace {

using namespace test;  // the modules

template <typename Holder, typename... Args>
std::function<Holder()> built(Args... args) {
  return [=] {
    Holder module(args...);
    fill_parameters(*module);
    return module;
  };
}

FsdpOptions with_units(WrapPolicy policy) {
  FsdpOptions options;
  options.auto_wrap_policy = std::move(policy);
  options.use_orig_params = true;
  return options;
}

// The K third of a fused attention bias has only rounding noise as gradient; SGD keeps it small.
ShardedCase<Gpt> gpt(int layers = 3, bool checkpointed = false) {
  ShardedCase<Gpt> test;
  test.build = built<Gpt>(layers, checkpointed);
  test.options = with_units(module_wrap_policy<BlockImpl>());
  test.loss = [](const auto& forward, int rank, int step) {
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    return next_token_loss(forward(tokens), tokens);
  };
  return test;
}

template <typename Holder>
ShardedCase<Holder> regression(std::vector<std::int64_t> shape, WrapPolicy policy) {
  ShardedCase<Holder> test;
  test.build = built<Holder>();
  test.options = with_units(std::move(policy));
  test.loss = [shape](const auto& forward, int rank, int step) {
    const auto input = random_values(shape, static_cast<std::uint64_t>(100 * step + rank + 7));
    return forward(input).square().mean();
  };
  return test;
}

TEST(Engine, a_gpt_trains_as_if_unsharded) {
  expect_same_training(gpt());
}

TEST(Engine, every_strategy_trains_alike) {
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
        ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    SCOPED_TRACE(static_cast<int>(strategy));
    auto test = gpt();
    test.options.sharding_strategy = strategy;
    expect_same_training(test, {1, 2, 4});
  }
}

TEST(Engine, flat_parameters_train_alike) {
  auto test = gpt();
  test.options.use_orig_params = false;
  expect_same_training(test);
}

TEST(Engine, every_prefetch_trains_alike) {
  for (const auto backward :
       {BackwardPrefetch::kNone, BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost}) {
    for (const bool forward : {false, true}) {
      auto test = gpt();
      test.options.backward_prefetch = backward;
      test.options.forward_prefetch = forward;
      test.options.bucket_bytes = 0;
      expect_same_training(test, {2, 3});
    }
  }
}

TEST(Engine, one_unit_for_everything_trains_alike) {
  auto test = gpt();
  test.options.auto_wrap_policy = nullptr;
  expect_same_training(test);
}

TEST(Engine, nested_units_train_alike) {
  auto test = gpt();
  test.options.auto_wrap_policy = always_wrap_policy();
  expect_same_training(test, {2, 3});
}

TEST(Engine, operators_on_parameters_of_two_units_find_both) {
  expect_same_training(regression<Crossed>({4, 6}, always_wrap_policy()));
}

TEST(Engine, views_of_parameters_survive_freeing_and_gathering_again) {
  auto test = regression<Viewed>({4, 6}, always_wrap_policy());
  expect_same_training(test);
  test.options.bucket_bytes = 0;
  expect_same_training(test);
}

TEST(Engine, odd_sizes_and_unused_parameters_train_alike) {
  expect_same_training(regression<Odd>({4, 7}, always_wrap_policy()));
  expect_same_training(regression<Odd>({4, 7}, nullptr));
}

TEST(Engine, stacks_of_fewer_rows_than_ranks_train_alike) {
  auto test = regression<Stacks>({4, 7}, nullptr);
  expect_same_training(test, {1, 2, 3, 4, 5});
  test.no_sync = true;
  test.micro_steps = 2;
  expect_same_training(test, {4});
  test.options.use_orig_params = false;
  test.options.sharding_strategy = ShardingStrategy::kHybridShard;
  expect_same_training(test, {4});
}

TEST(Engine, a_tied_weight_trains_alike) {
  ShardedCase<Tied> test;
  test.build = built<Tied>();
  test.options = with_units([](const torch::nn::Module& module, bool recurse, std::int64_t) {
    return recurse || module.named_parameters().contains("bias");
  });
  test.loss = gpt().loss;
  expect_same_training(test);
}

TEST(Engine, a_sequential_and_an_lstm_train_alike) {
  expect_same_training(regression<Recurrent>({3, 5, 6}, module_wrap_policy<nn::LSTMImpl>()));
  expect_same_training(regression<Recurrent>({3, 5, 6}, always_wrap_policy()), {2});
}

TEST(Engine, many_kinds_of_modules_train_alike) {
  auto test = regression<Zoo>({2, 2, 4, 4}, always_wrap_policy());
  test.tolerance = 1e-5;
  expect_same_training(test, {1, 2, 3});
}

TEST(Engine, frozen_units_and_parameters_train_alike) {
  auto test = gpt();
  test.build = [] {
    auto module = built<Gpt>(3, false)();
    for (auto& parameter : module->blocks->ptr<BlockImpl>(1)->parameters())
      parameter.set_requires_grad(false);
    module->emb->weight.set_requires_grad(false);
    module->blocks->ptr<BlockImpl>(2)->up->bias.set_requires_grad(false);
    return module;
  };
  expect_same_training(test);
}

TEST(Engine, accumulation_trains_alike_with_and_without_synchronization) {
  for (const bool no_sync : {false, true}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                ShardingStrategy::kNoShard}) {
      auto test = gpt(2);
      test.options.sharding_strategy = strategy;
      test.micro_steps = 3;
      test.no_sync = no_sync;
      test.tolerance = 4e-6;
      expect_same_training(test, {1, 2, 3});
    }
  }
}

TEST(Engine, checkpointed_blocks_train_alike) {
  expect_same_training(gpt(3, true));
  auto test = gpt(3, true);
  test.options.bucket_bytes = 0;
  test.options.sharding_strategy = ShardingStrategy::kShardGradOp;
  expect_same_training(test, {2});
}

TEST(Engine, evaluation_between_steps_uses_the_stepped_weights) {
  for (const bool inference : {false, true}) {
    auto test = gpt(2);
    test.build = built<Gpt>(2, false);
    test.after_step = [inference](auto& sharded, int step) {
      const auto tokens = random_tokens({2, 9}, 53, 1);
      const torch::NoGradGuard no_grad;
      std::optional<c10::InferenceMode> mode;
      if (inference) mode.emplace();
      const double once = next_token_loss(sharded.forward(tokens), tokens).template item<double>();
      const double again = next_token_loss(sharded.forward(tokens), tokens).template item<double>();
      EXPECT_EQ(once, again) << step;
      for (const auto& unit : engine_of(sharded).units())
        EXPECT_TRUE(unit->resident || unit->state == UnitState::kSharded);
    };
    expect_same_training(test, {1, 2, 3});
  }
}

TEST(Engine, two_forwards_before_one_backward_train_alike) {
  auto test = gpt(2);
  test.loss = [](const auto& forward, int rank, int step) {
    const auto seed = static_cast<std::uint64_t>(100 * step + rank);
    const auto a = random_tokens({2, 9}, 53, seed);
    const auto b = random_tokens({2, 9}, 53, seed + 50);
    const torch::Tensor first = next_token_loss(forward(a), a);
    return first + next_token_loss(forward(b), b);
  };
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    test.options.sharding_strategy = strategy;
    expect_same_training(test);
  }
}

TEST(Engine, forward_may_run_in_another_thread) {
  auto test = gpt(2);
  test.loss = [](const auto& forward, int rank, int step) {
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    torch::Tensor loss;
    std::thread([&] { loss = next_token_loss(forward(tokens), tokens); }).join();
    return loss;
  };
  expect_same_training(test, {2});
}

// Checks what the third step of a GPT of four blocks did, on each of two ranks.
void expect_of_a_step(
    const std::function<void(FsdpOptions&)>& set,
    const std::function<void(const EngineStats& before, const EngineStats& after)>& expect) {
  spawn_ranks(2, [&](const Group& group) {
    auto test = gpt(4);
    FsdpOptions options = test.options;
    options.process_group = group;
    options.device_id = test::device_id_of_rank(group->rank());
    set(options);
    FullyShardedDataParallel<Gpt> sharded(test.build(), options);
    const auto step = [&](int seed) {
      test.loss([&](const Tensor& x) { return sharded.forward(x); }, group->rank(), seed)
          .backward();
    };
    step(0);
    step(1);
    const EngineStats before = engine_of(sharded).stats();
    step(2);
    expect(before, engine_of(sharded).stats());
  });
}

TEST(Engine, units_are_gathered_ahead_and_used) {
  expect_of_a_step(
      [](FsdpOptions& options) {
        options.bucket_bytes = 0;
        options.forward_prefetch = true;
      },
      [](const EngineStats& before, const EngineStats& after) {
        // Forward: the root and four blocks.  Backward: the root and the last block are still
        // unsharded.
        EXPECT_EQ(after.gathers - before.gathers, 5 + 3);
        EXPECT_EQ(after.prefetched_units - before.prefetched_units,
                  after.prefetch_hits - before.prefetch_hits);
        EXPECT_EQ(after.prefetched_units - before.prefetched_units, 3 + 4);
        EXPECT_EQ(after.reductions - before.reductions, 5);
      });
}

TEST(Engine, small_units_share_their_collectives) {
  expect_of_a_step([](FsdpOptions&) {},
                   [](const EngineStats& before, const EngineStats& after) {
                     // One in forward, one in backward.
                     EXPECT_EQ(after.gathers - before.gathers, 2);
                     EXPECT_EQ(after.reductions - before.reductions, 1);
                   });
}

// As FairScale's buckets.
TEST(Engine, a_bucket_is_reduced_before_it_would_be_larger) {
  std::atomic<std::int64_t> block = 0;  // bytes of all ranks' shares of a block's gradients
  expect_of_a_step(
      [&](FsdpOptions& options) {
        const FullyShardedDataParallel<Gpt> sharded(filled_gpt(4), options);
        const Unit& unit = *engine_of(sharded).units().at(1);
        block = unit.groups.front().grad_numel * 4 * options.process_group->size();
        options.bucket_bytes = 2 * block + 1024;  // with what is sent beside them
      },
      [](const EngineStats& before, const EngineStats& after) {
        // Two blocks, two blocks, the root.
        EXPECT_EQ(after.reductions - before.reductions, 3);
      });
  expect_of_a_step([&](FsdpOptions& options) { options.bucket_bytes = 2 * block - 1; },
                   [](const EngineStats& before, const EngineStats& after) {
                     // Three blocks, and the last one with the root.
                     EXPECT_EQ(after.reductions - before.reductions, 4);
                   });
}

}  // namespace
}  // namespace fsdp
