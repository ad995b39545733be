// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/memory_estimate.h"

#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/meta_device.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

TEST(MemoryEstimate, of_one_linear_layer_by_hand) {
  const nn::Linear linear(10, 6);
  // On 4 ranks: 2 of 6 rows of 10, rounded up to 32 floats, and 2 of 6 biases, rounded up to 16:
  // 192 bytes, and 64 for the unit's id.
  const auto estimate = estimate_memory(*linear, {}, {.world_size = 4});
  EXPECT_EQ(estimate.shard_ranks, 4);
  EXPECT_EQ(estimate.parameters, 256);
  EXPECT_EQ(estimate.gradients, 192);
  EXPECT_EQ(estimate.optimizer_state, 2 * 192);
  EXPECT_EQ(estimate.buffers, 0);
  EXPECT_EQ(estimate.unsharded, 0);
  // The gathered parameters, the gather itself, the staged gradients and the received gradients.
  EXPECT_EQ(estimate.gathered, 4 * 192 + 4 * 256);
  EXPECT_EQ(estimate.reducing, 4 * 256 + 4 * 256);
  EXPECT_EQ(estimate.on_device(), 256 + 3 * 192 + estimate.gathered + estimate.reducing);
  EXPECT_EQ(estimate.on_host(), 0);
  ASSERT_EQ(estimate.units.size(), 1U);
  EXPECT_EQ(estimate.units[0].numel, 66);
  EXPECT_EQ(estimate.units[0].full_bytes, 768);
}

TEST(MemoryEstimate, dtypes_offload_and_optimizers_count) {
  const nn::Linear linear(10, 6);
  FsdpOptions options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.cpu_offload.offload_params = true;
  // Rounded to 32 elements, which are 64 bytes of the smaller dtype.
  const auto estimate =
      estimate_memory(*linear, options, {.world_size = 4, .optimizer_tensors = 1});
  EXPECT_EQ(estimate.parameters, 64 * 4 + 64);
  EXPECT_EQ(estimate.gradients, 64 * 4);
  EXPECT_EQ(estimate.optimizer_state, 64 * 4);
  EXPECT_EQ(estimate.units[0].full_bytes, 4 * 64 * 2);
  EXPECT_EQ(estimate.on_host(), 3 * 64 * 4 + 64);
  EXPECT_EQ(estimate.on_device(), estimate.gathered + estimate.reducing);
}

TEST(MemoryEstimate, ignored_and_frozen_parameters_and_buffers_count_as_what_they_are) {
  nn::Sequential module(nn::Linear(10, 6), nn::Linear(6, 6), nn::BatchNorm1d(6));
  for (auto& parameter : module[1]->parameters()) parameter.set_requires_grad(false);
  FsdpOptions options;
  options.use_orig_params = true;
  options.ignored_modules = {module.ptr()->children()[0]};
  const auto estimate = estimate_memory(*module, options, {.world_size = 2});
  EXPECT_EQ(estimate.unsharded, 66 * 4 * 4);   // with a gradient and AdamW's state
  EXPECT_EQ(estimate.buffers, 2 * 6 * 4 + 8);  // mean, variance, count
  EXPECT_EQ(estimate.gradients, 2 * 16 * 4);   // only those of the batch norm
  EXPECT_EQ(estimate.parameters, (2 * 16 + 32 + 16) * 4 + 64);
  options.mixed_precision.buffer_dtype = torch::kBFloat16;
  EXPECT_EQ(estimate_memory(*module, options, {.world_size = 2}).buffers, 2 * 6 * 2 + 8);
}

TEST(MemoryEstimate, a_module_on_the_meta_device_takes_none) {
  const auto build = [] {
    const MetaDevice meta;
    return nn::Linear(nn::LinearOptions(1 << 20, 1 << 20).bias(false));
  };
  const auto module = build();
  const auto estimate = estimate_memory(*module, {}, {.world_size = 1024});
  EXPECT_EQ(estimate.parameters, (std::int64_t{1} << 32) + 64);
}

// A mixture of experts, a table of places and a single number, with fewer rows than ranks.
TEST(MemoryEstimate, stacks_take_their_share_on_many_ranks) {
  struct Stack : nn::Module {
    Stack() {
      register_parameter("experts", torch::empty({8, 4096, 512}));
      register_parameter("places", torch::empty({1, 2048, 512}));
      register_parameter("gain", torch::empty({1}));
    }
  };
  const auto build = [] {
    const MetaDevice meta;
    return std::make_shared<Stack>();
  };
  const auto module = build();
  const std::int64_t bytes = (8 * 4096 + 2048) * 512 * 4;
  for (const int world_size : {64, 1024}) {
    const auto estimate = estimate_memory(*module, {}, {.world_size = world_size});
    // Beside their share, 64 bytes for the gain and 64 for the unit's id.
    EXPECT_EQ(estimate.parameters, bytes / world_size + 2 * 64);
    EXPECT_EQ(estimate.gradients, bytes / world_size + 64);
    EXPECT_EQ(estimate.optimizer_state, 2 * estimate.gradients);
    EXPECT_EQ(estimate.units[0].full_bytes, bytes + world_size * 64);
  }
}

TEST(MemoryEstimate, strategies_shard_what_they_say) {
  const test::Gpt gpt(3);
  FsdpOptions options;
  options.auto_wrap_policy = module_wrap_policy<test::Block>();
  const auto estimates = estimate_strategies(*gpt, options, {.world_size = 8, .node_size = 2});
  ASSERT_EQ(estimates.size(), 5U);
  const auto& full = estimates[0];
  const auto& grad_op = estimates[1];
  const auto& none = estimates[2];
  const auto& hybrid = estimates[3];
  EXPECT_EQ(full.parameters, grad_op.parameters);
  EXPECT_LT(full.gathered, grad_op.gathered);
  EXPECT_EQ(full.reducing, grad_op.reducing);
  EXPECT_EQ(none.shard_ranks, 1);
  EXPECT_EQ(none.replicas, 8);
  EXPECT_GT(none.parameters, 3 * hybrid.parameters / 2);
  EXPECT_EQ(hybrid.shard_ranks, 2);
  EXPECT_EQ(hybrid.replicas, 4);
  EXPECT_EQ(estimate_strategies(*gpt, options, {.world_size = 8}).size(), 3U);
}

TEST(MemoryEstimate, the_table_has_a_line_a_strategy) {
  const nn::Linear linear(1024, 1024);
  std::ostringstream out;
  print_memory_table(out, estimate_strategies(*linear, {}, {.world_size = 4, .node_size = 2}));
  EXPECT_EQ(out.str(),
            "MiB a rank           shards  parameters  gradients  optimizer  unsharded  buffers  "
            "gathered  reducing  device  host\n"
            "FULL_SHARD                4         1.0        1.0        2.0        0.0      0.0  "
            "     8.0       8.0    20.0   0.0\n"
            "SHARD_GRAD_OP             4         1.0        1.0        2.0        0.0      0.0  "
            "     8.0       8.0    20.0   0.0\n"
            "NO_SHARD              1 x 4         4.0        4.0        8.0        0.0      0.0  "
            "     0.0       4.0    20.0   0.0\n"
            "HYBRID_SHARD          2 x 2         2.0        2.0        4.0        0.0      0.0  "
            "     8.0       8.0    24.0   0.0\n"
            "_HYBRID_SHARD_ZERO2   2 x 2         2.0        2.0        4.0        0.0      0.0  "
            "     8.0       8.0    24.0   0.0\n");
}

TEST(MemoryEstimate, refuses_what_cannot_be) {
  const nn::Linear linear(2, 2);
  FsdpOptions options;
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  EXPECT_THAT(
      error_of([&] { estimate_memory(*linear, options, {.world_size = 8, .node_size = 3}); }),
      HasSubstr("a node size that divides the 8 ranks, found 3"));
  EXPECT_THAT(error_of([&] { estimate_memory(*linear, {}, {.world_size = 0}); }),
              HasSubstr("found 0"));
}

// Compares the estimate with the engine's real memory.
void expect_estimated(FsdpOptions options, int world_size) {
  SCOPED_TRACE("strategy " + std::to_string(static_cast<int>(options.sharding_strategy)) +
               ", bucket " + std::to_string(options.bucket_bytes) + ", ranks " +
               std::to_string(world_size));
  const auto estimate =
      estimate_memory(*test::Gpt(6, false, 96), options, {.world_size = world_size});
  spawn_ranks(world_size, [&](const Group& group) {
    FsdpOptions with_group = options;
    with_group.process_group = group;
    with_group.device_id = test::device_id_of_rank(group->rank());
    FullyShardedDataParallel<test::Gpt> sharded(test::Gpt(6, false, 96), with_group);
    torch::optim::AdamW optimizer(sharded.parameters());
    Engine& engine = engine_of(sharded);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      sharded.forward(random_tokens({2, 9}, 53, 1)).square().mean().backward();
      optimizer.step();
    }
    std::int64_t parameters = 0;
    std::int64_t gradients = 0;
    for (const auto& unit : engine.units()) {
      parameters += static_cast<std::int64_t>(unit->local.nbytes());
      for (const auto& flat : unit->groups) {
        gradients += static_cast<std::int64_t>(flat.grad.nbytes());
      }
    }
    EXPECT_EQ(parameters, estimate.parameters);
    EXPECT_EQ(gradients, estimate.gradients);
    EXPECT_EQ(2 * gradients, estimate.optimizer_state);
    // Buffers are rounded up, and reused if they are up to a quarter too large.
    const auto gathered = engine.buffers().peak_bytes(Use::kParameters);
    EXPECT_LE(gathered, estimate.gathered + estimate.gathered / 4);
    EXPECT_GE(3 * gathered, estimate.gathered);
    const auto reducing = engine.buffers().peak_bytes(Use::kGradients);
    EXPECT_LE(reducing, estimate.reducing + estimate.reducing / 4);
    EXPECT_GE(4 * reducing, estimate.reducing);
  });
}

TEST(MemoryEstimate, bounds_what_the_engine_takes) {
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    for (const std::int64_t bucket : {0, 4 << 20}) {
      FsdpOptions options;
      options.sharding_strategy = strategy;
      options.bucket_bytes = bucket;
      options.auto_wrap_policy = module_wrap_policy<test::Block>();
      for (const int world_size : {1, 2, 3}) expect_estimated(options, world_size);
      options.mixed_precision.param_dtype = torch::kBFloat16;
      expect_estimated(options, 2);
    }
  }
}

}  // namespace
}  // namespace fsdp
