// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/comm_hooks.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

TEST(CommHooks, divide_before_the_sum_by_what_pytorch_does) {
  // DefaultState._get_gradient_predivide_factor of torch 2.11.
  for (const auto& [world_size, factor] : std::vector<std::pair<int, int>>{{1, 1},
                                                                           {2, 2},
                                                                           {3, 2},
                                                                           {4, 2},
                                                                           {6, 4},
                                                                           {8, 4},
                                                                           {12, 4},
                                                                           {16, 4},
                                                                           {64, 8},
                                                                           {100, 8},
                                                                           {1000, 16},
                                                                           {1024, 32}}) {
    EXPECT_EQ(gradient_predivide_factor(world_size), factor) << world_size;
  }
}

// Returns a tensor on the device of this rank.
at::Tensor placed(const Group& group, const at::Tensor& tensor) {
  return tensor.to(test::device_of_rank(group->rank()));
}

// Returns rank r's gradient; whole numbers, whose means over up to four ranks are exact in float32.
at::Tensor gradient_of(int rank, int world_size) {
  return torch::arange(3.0 * world_size).mul_(12).add_(12 * rank * rank);
}

at::Tensor mean_gradient(int world_size) {
  auto mean = torch::zeros({3 * world_size});
  for (int rank = 0; rank < world_size; ++rank) mean.add_(gradient_of(rank, world_size));
  return mean.div_(world_size);
}

TEST(CommHooks, every_rank_gets_its_rows_of_the_mean) {
  for (const int world_size : {1, 2, 3, 4}) {
    spawn_ranks(world_size, [&](const Group& group) {
      const auto expected = mean_gradient(world_size);
      for (const auto& hook : {allreduce_hook(), fp16_compress_hook(), bf16_compress_hook()}) {
        auto whole = placed(group, gradient_of(group->rank(), world_size));
        auto same = whole;
        hook(group, whole, same);
        EXPECT_TRUE(torch::allclose(whole.cpu(), expected, 1e-2));
        EXPECT_EQ(whole.scalar_type(), torch::kFloat);
      }
      for (const auto& hook : {reduce_scatter_hook(), fp16_compress_hook(), bf16_compress_hook()}) {
        auto unsharded = placed(group, gradient_of(group->rank(), world_size));
        auto sharded = placed(group, torch::empty({3}));
        hook(group, unsharded, sharded);
        EXPECT_TRUE(torch::allclose(sharded.cpu(), expected.narrow(0, 3 * group->rank(), 3), 1e-2));
        EXPECT_EQ(sharded.scalar_type(), torch::kFloat);
      }
      auto whole = placed(group, gradient_of(group->rank(), world_size));
      auto same = whole;
      allreduce_hook()(group, whole, same);
      EXPECT_TRUE(torch::allclose(whole.cpu(), expected, 1e-6, 1e-6));
    });
  }
}

TEST(CommHooks, compression_rounds_to_the_dtype_it_says) {
  spawn_ranks(2, [](const Group& group) {
    // One unit in the last place of float16; bfloat16 cannot represent it.
    const auto gradient = torch::full({2}, 1 + 1.0 / 1024);
    for (const auto& [hook, expected] : std::vector<std::pair<CommHook, double>>{
             {fp16_compress_hook(), 1 + 1.0 / 1024}, {bf16_compress_hook(), 1.0}}) {
      auto unsharded = placed(group, gradient.clone());
      auto sharded = placed(group, torch::empty({1}));
      hook(group, unsharded, sharded);
      EXPECT_EQ(sharded.item<float>(), static_cast<float>(expected));
    }
  });
}

TEST(CommHooks, large_and_small_gradients_survive_float16) {
  spawn_ranks(4, [](const Group& group) {
    for (const double value : {30000.0, 1e-7}) {  // the plain sum of the first is infinite
      auto unsharded = placed(group, torch::full({4}, value));
      auto sharded = placed(group, torch::empty({1}));
      fp16_compress_hook()(group, unsharded, sharded);
      EXPECT_NEAR(sharded.item<double>(), value, 0.5 * value);
    }
  });
}

TEST(CommHooks, a_hook_of_ones_own_sees_the_compressed_gradient) {
  spawn_ranks(2, [](const Group& group) {
    const auto hook =
        compress_hook(torch::kDouble, [](const Group&, at::Tensor& unsharded, at::Tensor& sharded) {
          EXPECT_EQ(unsharded.scalar_type(), torch::kDouble);
          sharded.copy_(unsharded.narrow(0, 0, sharded.numel()));
        });
    auto unsharded = torch::arange(4.0);
    auto sharded = torch::empty({2});
    hook(group, unsharded, sharded);
    EXPECT_TRUE(torch::equal(sharded, torch::arange(2.0)));
  });
  EXPECT_THAT(error_of([] { compress_hook(torch::kHalf, {}); }), HasSubstr("found an empty one"));
}

TEST(CommHooks, a_hook_for_the_other_kind_of_strategy_says_so) {
  spawn_ranks(2, [](const Group& group) {
    auto whole = torch::ones({2});
    auto same = whole;
    auto shard = torch::ones({1});
    EXPECT_THAT(error_of([&] { allreduce_hook()(group, whole, shard); }),
                HasSubstr("register reduce_scatter_hook()"));
    EXPECT_THAT(error_of([&] { reduce_scatter_hook()(group, whole, same); }),
                HasSubstr("register allreduce_hook()"));
  });
}

ShardedCase<test::Gpt> with_hook(ShardingStrategy strategy, const CommHook& hook) {
  ShardedCase<test::Gpt> test;
  test.build = [] {
    test::Gpt module(2);
    fill_parameters(*module);
    return module;
  };
  test.options.auto_wrap_policy = module_wrap_policy<test::Block>();
  test.options.use_orig_params = true;
  test.options.sharding_strategy = strategy;
  test.loss = [](const auto& forward, int rank, int step) {
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    return test::next_token_loss(forward(tokens), tokens);
  };
  test.wrapped = [hook](auto& sharded) { sharded.register_comm_hook(hook); };
  return test;
}

TEST(CommHooks, training_with_a_hook_is_training_without) {
  expect_same_training(with_hook(ShardingStrategy::kFullShard, reduce_scatter_hook()));
  expect_same_training(with_hook(ShardingStrategy::kShardGradOp, reduce_scatter_hook()), {2, 3});
  expect_same_training(with_hook(ShardingStrategy::kNoShard, allreduce_hook()), {2, 3});
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    auto rounded = with_hook(strategy, fp16_compress_hook());
    rounded.tolerance = 2e-3;
    expect_same_training(rounded, {2, 3});
  }
}

}  // namespace
}  // namespace fsdp
