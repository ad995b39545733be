// SPDX-License-Identifier: Apache-2.0
// Scenes: training on simulated devices, one for each rank, compared with the same training on the
// CPU without sharding.  The checker of the devices fails a test in which an access is not ordered.
//
// Unlike the other tests of sharded modules, a scene lets the host run ahead: it looks at results
// only when all steps are queued.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test {

using ShardedGpt = FullyShardedDataParallel<Gpt>;

// Training of a Gpt whose blocks are units.
struct Scene {
  FsdpOptions options = [] {
    FsdpOptions result;
    result.use_orig_params = true;
    result.bucket_bytes = 0;
    return result;
  }();
  int world_size = 2;
  int layers = 4;
  bool checkpointed = false;
  int steps = 4;
  int micro_steps = 1;
  bool no_sync = false;  // reduces only in the last micro step
  double clip = 0;       // the norm to clip to; 0: none
  bool adamw = false;
  bool set_to_none = true;  // in zero_grad()
  // The host waits after each step, as for a loss that is printed.
  bool waits_each_step = true;
  // Losses and weights have to agree so far, relative to values above 1.
  double tolerance = 1e-6;
  // Low precision: only losses are compared.
  bool only_losses = false;
  sim::Progress progress = sim::Progress::kLate;
  std::function<void(ShardedGpt&, const Group&)> after_step = [](ShardedGpt&, const Group&) {};
  // Looks at the engine and its device once all is queued.
  std::function<void(ShardedGpt&, const Group&)> at_end = [](ShardedGpt&, const Group&) {};
};

// Returns the module that it trains, on the CPU.
Gpt build(const Scene& scene);

void train(const Scene& scene);

// Runs `body` on every rank of a scene without its training.  Its options are complete.
void run(const Scene& scene, const std::function<void(const Group&, const FsdpOptions&)>& body);
// The same with a sharded Gpt.
void run(const Scene& scene, const std::function<void(ShardedGpt&, const Group&)>& body);

// Names the streams of an engine in findings and counters: "unshard" and "reduce".
void name_lanes(const ShardedModule& sharded);

// Tokens of a rank and step, on its device.
torch::Tensor device_tokens(int rank, int step);
torch::Tensor device_values(std::vector<std::int64_t> shape, int rank, int step);
inline torch::Tensor token_loss(ShardedGpt& sharded, int rank, int step) {
  const torch::Tensor tokens = device_tokens(rank, step);
  return next_token_loss(sharded.forward(tokens), tokens);
}

void expect_near(const torch::Tensor& found, const torch::Tensor& expected, double tolerance,
                 const std::string& what);

// Trains any module in step with the same one on the CPU.  `loss_of` gets the module, a function
// that calls its forward with a tensor of the CPU, the rank and the step.
template <typename Holder>
struct AnyModule {
  using Forward = std::function<torch::Tensor(const torch::Tensor&)>;
  std::function<Holder()> build = [] {
    Holder module;
    fill_parameters(*module);
    return module;
  };
  std::function<torch::Tensor(Holder&, const Forward&, int rank, int step)> loss_of;
  int steps = 3;
  double momentum = 0.5;
  double tolerance = 2e-6;
};

template <typename Holder>
void train(const AnyModule<Holder>& any, const Group& group, const FsdpOptions& options) {
  Holder reference = any.build();
  Holder module = any.build();
  const c10::Device device = *options.device_id;
  FullyShardedDataParallel<Holder> sharded(module, options);
  name_lanes(sharded);
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(any.momentum);
  torch::optim::SGD reference_optimizer(reference->parameters(), sgd);
  torch::optim::SGD optimizer(sharded.parameters(), sgd);
  const auto plain = [&](const torch::Tensor& input) { return reference->forward(input); };
  const auto through = [&](const torch::Tensor& input) {
    return sharded.forward(input.to(device));
  };
  for (int step = 0; step < any.steps; ++step) {
    for (int rank = 0; rank < group->size(); ++rank)
      (any.loss_of(reference, plain, rank, step) / group->size()).backward();
    any.loss_of(module, through, group->rank(), step).backward();
    reference_optimizer.step();
    optimizer.step();
    reference_optimizer.zero_grad();
    optimizer.zero_grad();
  }
  const StateDict state = sharded.state_dict();
  for (const auto& item : reference->named_parameters())
    expect_near(*state.at(item.key()).as_tensor(), item.value().detach(), any.tolerance,
                item.key());
}

}  // namespace fsdp::test
