// SPDX-License-Identifier: Apache-2.0
// Training of ranks that read each other's memory, and of ranks that send it: the same bits.
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/strategy.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
namespace {

using Sharded = FullyShardedDataParallel<test::Gpt>;

struct Way {
  std::string name;
  int world_size = 2;
  std::function<void(FsdpOptions&)> change = [](FsdpOptions&) {};
  int micro_steps = 1;
  bool no_sync = false;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

// Returns every rank's losses, and the whole weights of rank 0.
std::vector<torch::Tensor> trained(const Way& way, bool direct) {
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> losses(static_cast<std::size_t>(way.world_size));
  ProcessGroupOptions ranks;
  ranks.world_size = way.world_size;
  ranks.direct_copies = direct;
  test::spawn_ranks(ranks, [&](const Group& group) {
    TORCH_CHECK(has_direct_copies(*group) == direct);
    FsdpOptions options = options_over(group, module_wrap_policy<test::BlockImpl>());
    way.change(options);
    Sharded sharded(filled_gpt(3), options);
    optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));
    std::vector<torch::Tensor> own;
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro < way.micro_steps; ++micro) {
        const bool is_last = micro + 1 == way.micro_steps;
        sharded.set_requires_gradient_sync(is_last || !way.no_sync);
        const torch::Tensor loss = gpt_loss(sharded, group->rank(), 10 * step + micro);
        loss.backward();
        own.push_back(loss.detach());
      }
      sharded.clip_grad_norm_(1.0);
      optimizer.step();
      optimizer.zero_grad();
      // A gather that no backward follows.
      const torch::NoGradGuard no_grad;
      own.push_back(gpt_loss(sharded, group->rank(), 1000 + step));
    }
    losses[static_cast<std::size_t>(group->rank())] = torch::stack(own);
    const StateDict state = sharded.state_dict();
    if (group->rank() != 0) return;
    for (const auto& [key, value] : state.entries()) weights.push_back(*value.as_tensor());
  });
  weights.insert(weights.end(), losses.begin(), losses.end());
  return weights;
}

class DirectCopies : public testing::TestWithParam<Way> {};

TEST_P(DirectCopies, train_to_the_same_bits_as_sockets) {
  if (test::on_sim()) GTEST_SKIP() << "only ranks on the CPU read each other's memory";
  const auto direct = trained(GetParam(), true);
  const auto sent = trained(GetParam(), false);
  ASSERT_EQ(direct.size(), sent.size());
  for (std::size_t i = 0; i < direct.size(); ++i)
    EXPECT_TRUE(torch::equal(direct[i], sent[i])) << "tensor " << i;
}

std::vector<Way> ways() {
  const auto bf16 = [](FsdpOptions& options) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kBFloat16;
  };
  std::vector<Way> ways{{"two_ranks"}, {"three_ranks", 3}, {"four_ranks", 4}};
  const auto add = [&](std::string name, int world, std::function<void(FsdpOptions&)> change,
                       int micro_steps = 1, bool no_sync = false) {
    ways.push_back({std::move(name), world, std::move(change), micro_steps, no_sync});
  };
  add("without_buckets", 3, [](FsdpOptions& options) { options.bucket_bytes = 0; });
  add("flat", 3, [](FsdpOptions& options) { options.use_orig_params = false; });
  add("forward_prefetch", 2, [](FsdpOptions& options) {
    options.forward_prefetch = true;
    options.bucket_bytes = 0;
  });
  add("shard_grad_op", 2,
      [](FsdpOptions& options) { options.sharding_strategy = ShardingStrategy::kShardGradOp; });
  add("hybrid_shard", 4, [](FsdpOptions& options) {
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.node_size = 2;
  });
  add("bf16", 3, bf16);
  add("bf16_reduced_in_float", 2, [](FsdpOptions& options) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
  });
  add(
      "accumulating", 3, [](FsdpOptions&) {}, 3);
  add(
      "accumulating_without_reductions", 3, [](FsdpOptions&) {}, 3, true);
  return ways;
}

INSTANTIATE_TEST_SUITE_P(, DirectCopies, testing::ValuesIn(ways()),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace fsdp
