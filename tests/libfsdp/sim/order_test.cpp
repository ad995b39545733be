// SPDX-License-Identifier: Apache-2.0
// Forwards that take other layers than the one before, on simulated devices: units are gathered
// ahead in vain, and their shards are written all the same.  Also modules of other kinds.
#include <string>
#include <vector>

#include "tests/libfsdp/sim/scene.h"
#include "tests/libfsdp/sim/stack.h"

namespace fsdp::test {
namespace {

const WrapPolicy kLinears = module_wrap_policy<torch::nn::LinearImpl>();

// ---- each step takes the layers in its own order

const std::vector<Order> kCut{{0, 1, 2, 3, 4, 5}, {0, 1, 2}};
const std::vector<Order> kMixed{{0, 1, 2, 3, 4, 5}, {0, 3, 1, 4}, {5, 4, 3, 2, 1, 0}};

struct OrderCase {
  std::string name;
  std::vector<Order> orders;
  std::function<void(FsdpOptions&)> change;
  double tolerance = 2e-6;
};

void PrintTo(const OrderCase& test, std::ostream* out) {
  *out << test.name;
}

class SimOrder : public testing::TestWithParam<OrderCase> {};

TEST_P(SimOrder, equals_the_cpu) {
  Scene scene;
  scene.options.auto_wrap_policy = kLinears;
  GetParam().change(scene.options);
  AnyModule<Stack> any;
  any.steps = 6;
  // Layers that are not used do not move.
  any.momentum = 0;
  any.tolerance = GetParam().tolerance;
  any.loss_of = [&](Stack& module, const auto& forward, int rank, int step) {
    const auto& orders = GetParam().orders;
    module->order = orders[static_cast<std::size_t>(step) % orders.size()];
    return forward(random_values({3, 16}, static_cast<std::uint64_t>(100 * step + rank)))
        .square()
        .mean();
  };
  run(scene, [&](const Group& group, const FsdpOptions& options) { train(any, group, options); });
}

std::vector<OrderCase> order_cases() {
  std::vector<OrderCase> cases;
  for (const bool ahead : {false, true}) {
    for (const auto& [backward, how] : {std::pair(BackwardPrefetch::kNone, "none"),
                                        std::pair(BackwardPrefetch::kBackwardPre, "pre"),
                                        std::pair(BackwardPrefetch::kBackwardPost, "post")}) {
      const auto change = [ahead, when = backward](FsdpOptions& options) {
        options.forward_prefetch = ahead;
        options.backward_prefetch = when;
      };
      const std::string name = std::string(how) + (ahead ? "_with_forward_prefetch" : "");
      cases.push_back({"cut_" + name, kCut, change});
      cases.push_back({"mixed_" + name, kMixed, change});
    }
  }
  cases.push_back(
      {"mixed_in_buckets", kMixed, [](FsdpOptions& options) { options.bucket_bytes = 4 << 20; }});
  cases.push_back({"mixed_in_bf16", kMixed,
                   [](FsdpOptions& options) {
                     options.forward_prefetch = true;
                     options.mixed_precision.param_dtype = torch::kBFloat16;
                   },
                   0.02});
  for (const auto& [name, orders] : {std::pair("cut", kCut), std::pair("mixed", kMixed)})
    cases.push_back({std::string(name) + "_offloaded", orders, [](FsdpOptions& options) {
                       options.forward_prefetch = true;
                       options.cpu_offload.offload_params = true;
                     }});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layers, SimOrder, testing::ValuesIn(order_cases()),
                         [](const auto& test) { return test.param.name; });

// ---- units that are gathered in vain and written

class SimVain : public testing::Test {
 protected:
  // Trains with an optimizer that writes every shard, also of layers that were not used.
  void train_in(const std::vector<Order>& orders) const {
    run(scene_, [&](const Group& group, const FsdpOptions& options) {
      Stack module;
      fill_parameters(*module);
      FullyShardedDataParallel<Stack> sharded(module, options);
      name_lanes(sharded);
      torch::optim::SGD optimizer(sharded.parameters(),
                                  torch::optim::SGDOptions(0.1).momentum(0.5));
      for (std::size_t step = 0; step < 8; ++step) {
        module->order = orders[step % orders.size()];
        const Tensor x = device_values({3, 16}, group->rank(), static_cast<int>(step));
        sharded.forward(x).square().mean().backward();
        optimizer.step();
        optimizer.zero_grad(/*set_to_none=*/false);
      }
      EXPECT_LT(internal::engine_of(sharded).stats().prefetch_hits,
                internal::engine_of(sharded).stats().prefetched_units);
    });
  }
  // Evaluates, and writes shards by hand.
  void write_after_forwards() const {
    run(scene_, [&](const Group& group, const FsdpOptions& options) {
      Stack module;
      fill_parameters(*module);
      FullyShardedDataParallel<Stack> sharded(module, options);
      name_lanes(sharded);
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 4; ++i) {
        module->order = i % 2 == 0 ? kCut[0] : kCut[1];
        sharded.forward(device_values({3, 16}, group->rank(), i));
        for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
      }
    });
  }

  Scene scene_ = [] {
    Scene scene;
    scene.options.auto_wrap_policy = kLinears;
    return scene;
  }();
};

const std::vector<Order> kVainInBackward{{5, 4, 3, 2, 1, 0}, {0, 2}, {0, 1, 2, 3, 4, 5}, {0, 1, 2}};
const std::vector<Order> kVainInForward{
    {0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {0, 3, 1, 4}, {0, 1, 2}};

TEST_F(SimVain, in_a_backward_before_an_optimizer) {
  train_in(kVainInBackward);
}
TEST_F(SimVain, in_a_backward_of_shard_grad_op_before_an_optimizer) {
  scene_.options.sharding_strategy = ShardingStrategy::kShardGradOp;
  scene_.options.forward_prefetch = true;
  train_in(kVainInBackward);
}
TEST_F(SimVain, in_a_forward_before_an_optimizer) {
  scene_.options.forward_prefetch = true;
  train_in(kVainInForward);
}
TEST_F(SimVain, in_a_forward_before_an_optimizer_of_offloaded_shards) {
  scene_.options.forward_prefetch = true;
  scene_.options.cpu_offload.offload_params = true;
  train_in(kVainInForward);
}
TEST_F(SimVain, in_an_evaluation_before_shards_are_written) {
  scene_.options.forward_prefetch = true;
  write_after_forwards();
}
TEST_F(SimVain, in_an_evaluation_before_offloaded_shards_are_written) {
  scene_.options.forward_prefetch = true;
  scene_.options.cpu_offload.offload_params = true;
  write_after_forwards();
}

// ---- modules of other kinds

template <typename Holder>
void train_regression(Scene scene, const WrapPolicy& policy, std::vector<std::int64_t> shape) {
  scene.options.auto_wrap_policy = policy;
  AnyModule<Holder> any;
  any.loss_of = [&](Holder&, const auto& forward, int rank, int step) {
    return forward(random_values(shape, static_cast<std::uint64_t>(100 * step + rank)))
        .square()
        .mean();
  };
  run(scene, [&](const Group& group, const FsdpOptions& options) { train(any, group, options); });
}

TEST(SimModules, two_units_in_one_operator) {
  train_regression<Crossed>({}, kLinears, {4, 6});
}
TEST(SimModules, views_of_a_freed_unit) {
  train_regression<Viewed>({}, kLinears, {4, 6});
}
TEST(SimModules, fewer_rows_than_ranks) {
  Scene scene;
  scene.world_size = 3;
  train_regression<Odd>(scene, kLinears, {4, 7});
}
TEST(SimModules, recurrent_nets) {
  train_regression<Recurrent>({}, module_wrap_policy<torch::nn::LinearImpl, torch::nn::LSTMImpl>(),
                              {4, 5, 6});
}
TEST(SimModules, many_kinds_at_once) {
  train_regression<Zoo>({}, size_based_auto_wrap_policy(50), {2, 2, 4, 4});
}
TEST(SimModules, tied_weights) {
  Scene scene;
  scene.options.auto_wrap_policy = kLinears;
  AnyModule<Tied> any;
  any.loss_of = [](Tied&, const auto& forward, int rank, int step) {
    const Tensor tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    const Tensor logits = forward(tokens);
    return next_token_loss(logits, tokens.to(logits.device()));
  };
  run(scene, [&](const Group& group, const FsdpOptions& options) { train(any, group, options); });
}

}  // namespace
}  // namespace fsdp::test
