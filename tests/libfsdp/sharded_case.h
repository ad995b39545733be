// SPDX-License-Identifier: Apache-2.0
// Trains a module twice: unsharded, on the data of all ranks, and sharded, each rank on its own
// data.  After every step losses, gradients and weights must agree.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp {
using namespace internal;

using test::spawn_ranks;
using Group = std::shared_ptr<ProcessGroup>;

// Returns values by seed, equal on every machine and thread.
inline torch::Tensor random_values(std::vector<std::int64_t> shape, std::uint64_t seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed));
}

inline torch::Tensor random_tokens(std::vector<std::int64_t> shape, std::int64_t vocabulary,
                                   std::uint64_t seed) {
  return torch::randint(vocabulary, shape, at::detail::createCPUGenerator(seed), torch::kLong);
}

// Fills parameters by name, so that a module is the same everywhere.
inline void fill_parameters(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (const auto& item : module.named_parameters()) {
    torch::Tensor tensor = item.value();
    tensor.copy_(random_values(tensor.sizes().vec(), seed++) * 0.3);
  }
}

template <typename Holder>
struct ShardedCase {
  using Impl = typename internal::ImplOf<Holder>::type;
  using Sharded = FullyShardedDataParallel<Holder>;
  using Forward = std::function<torch::Tensor(const torch::Tensor&)>;

  std::function<Holder()> build;
  FsdpOptions options;  // without a group
  // Returns the loss of rank `rank` in micro step `step`, by calling forward.
  std::function<torch::Tensor(const Forward& forward, int rank, int step)> loss;
  std::vector<std::string> left_out;  // parameters not compared
  int steps = 3;
  int micro_steps = 1;
  bool no_sync = false;  // reduce only in the last micro step
  double tolerance = 2e-6;
  double learning_rate = 0.05;
  std::function<void(Sharded&)> wrapped = [](Sharded&) {};
  // Called in every step before the sharded backward, and after the optimizer.
  std::function<void(Sharded&, int step)> before_backward = [](Sharded&, int) {};
  std::function<void(Sharded&, int step)> after_step = [](Sharded&, int) {};
};

// Of tensors of any device.
inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.cpu() - b.cpu()).abs().max().item<double>();
}

template <typename Holder>
void train_both(const ShardedCase<Holder>& test, const Group& group) {
  using Sharded = typename ShardedCase<Holder>::Sharded;
  const int world_size = group->size();
  Holder reference = test.build();
  Holder module = test.build();
  FsdpOptions options = test.options;
  options.process_group = group;
  options.device_id = test::device_id_of_rank(group->rank());
  if (!options.node_size) options.node_size = world_size % 2 == 0 ? 2 : 1;
  Sharded sharded(module, options);
  test.wrapped(sharded);
  const auto sgd = torch::optim::SGDOptions(test.learning_rate).momentum(0.5);
  std::vector<torch::Tensor> trained;
  for (const auto& parameter : reference->parameters()) {
    // A module registered twice lists its parameters twice.
    const bool again = std::any_of(trained.begin(), trained.end(), [&](const torch::Tensor& other) {
      return other.is_same(parameter);
    });
    if (parameter.requires_grad() && !again) trained.push_back(parameter);
  }
  torch::optim::SGD reference_optimizer(trained, sgd);
  torch::optim::SGD optimizer(sharded.parameters(), sgd);
  const auto plain = [&](const torch::Tensor& input) { return reference->forward(input); };
  const auto through = [&](const torch::Tensor& input) { return sharded.forward(input).cpu(); };
  for (int step = 0; step < test.steps; ++step) {
    for (int micro = 0; micro < test.micro_steps; ++micro) {
      const int seed = step * test.micro_steps + micro;
      double expected = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const torch::Tensor loss = test.loss(plain, rank, seed);
        (loss / world_size).backward();
        if (rank == group->rank()) expected = loss.template item<double>();
      }
      sharded.set_requires_gradient_sync(!test.no_sync || micro + 1 == test.micro_steps);
      const torch::Tensor loss = test.loss(through, group->rank(), seed);
      ASSERT_NEAR(loss.template item<double>(), expected,
                  test.tolerance * std::max(1.0, std::abs(expected)))
          << "loss of step " << step;
      test.before_backward(sharded, step);
      loss.backward();
    }
    for (const auto& unit : engine_of(sharded).units()) {
      EXPECT_TRUE(unit->always_unsharded || unit->state == UnitState::kSharded)
          << "unit '" << unit->name << "' is unsharded after backward";
      for (const auto& parameter : unit->parameters) {
        // A stand-in, without memory.
        const torch::Tensor& gradient = parameter->full.grad();
        EXPECT_TRUE(!gradient.defined() || gradient.storage().nbytes() == 0) << parameter->name();
        if (!test.no_sync) continue;
        EXPECT_FALSE(parameter->kept.defined()) << parameter->name();
      }
    }
    const auto compare = [&](const char* what, bool gradients) {
      SummonOptions summon;
      summon.writeback = false;
      summon.with_grads = gradients;
      const FullParams scope = sharded.summon_full_params(summon);
      const auto full = module->named_parameters();
      for (const auto& item : reference->named_parameters()) {
        if (std::find(test.left_out.begin(), test.left_out.end(), item.key()) !=
            test.left_out.end())
          continue;
        const torch::Tensor found = gradients ? full[item.key()].grad() : full[item.key()];
        const torch::Tensor wanted = gradients ? item.value().grad() : item.value();
        if (!found.defined() || !wanted.defined()) {
          // An unused parameter beside used ones has a gradient of zeros.
          const torch::Tensor& some = found.defined() ? found : wanted;
          EXPECT_TRUE(!some.defined() || distance(some, torch::zeros_like(some)) == 0)
              << what << ' ' << item.key() << " of step " << step;
          continue;
        }
        EXPECT_LE(distance(found.detach().to(wanted.scalar_type()), wanted.detach()),
                  test.tolerance * 10)
            << what << ' ' << item.key() << " of step " << step;
      }
    };
    if (options.use_orig_params) compare("gradient", true);
    optimizer.step();
    reference_optimizer.step();
    optimizer.zero_grad();
    reference_optimizer.zero_grad();
    test.after_step(sharded, step);
    compare("weight", false);
  }
}

// Runs every world size; fails the test for every rank that fails.
template <typename Holder>
void expect_same_training(const ShardedCase<Holder>& test,
                          const std::vector<int>& world_sizes = {1, 2, 3, 4}) {
  for (const int world_size : world_sizes) {
    SCOPED_TRACE("world size " + std::to_string(world_size));
    spawn_ranks(world_size, [&](const Group& group) { train_both(test, group); });
  }
}

}  // namespace fsdp
