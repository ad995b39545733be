// SPDX-License-Identifier: Apache-2.0
#include "tests/libfsdp/sim/scene.h"

#include <algorithm>
#include <tuple>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "libfsdp/optim/adamw.h"
#include "libfsdp/state_dict.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/test_device.h"

namespace fsdp::test {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Scene& scene,
                                                        const std::vector<Tensor>& parameters) {
  if (scene.adamw)
    return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.05).momentum(0.5));
}

Tensor tokens_of(int rank, int step) {
  return random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
}

// Trains without sharding, on the CPU, with the data of all ranks.  Returns the losses of one.
std::vector<Tensor> train_reference(const Scene& scene, Gpt& module, const Group& group) {
  const auto optimizer = make_optimizer(scene, module->parameters());
  std::vector<Tensor> losses;
  for (int step = 0; step < scene.steps; ++step) {
    for (int micro = 0; micro < scene.micro_steps; ++micro) {
      for (int rank = 0; rank < group->size(); ++rank) {
        const Tensor tokens = tokens_of(rank, step * scene.micro_steps + micro);
        const Tensor loss = next_token_loss(module->forward(tokens), tokens);
        (loss / group->size()).backward();
        if (rank == group->rank()) losses.push_back(loss.detach());
      }
    }
    if (scene.clip != 0) torch::nn::utils::clip_grad_norm_(module->parameters(), scene.clip);
    optimizer->step();
    optimizer->zero_grad();
  }
  return losses;
}

std::vector<Tensor> train_sharded(const Scene& scene, ShardedGpt& sharded, const Group& group) {
  const auto optimizer = make_optimizer(scene, sharded.parameters());
  // Data is there before.
  std::vector<Tensor> tokens;
  for (int i = 0; i < scene.steps * scene.micro_steps; ++i)
    tokens.push_back(device_tokens(group->rank(), i));
  std::vector<Tensor> losses;
  for (int step = 0; step < scene.steps; ++step) {
    for (int micro = 0; micro < scene.micro_steps; ++micro) {
      const Tensor& input = tokens[static_cast<std::size_t>(step * scene.micro_steps + micro)];
      sharded.set_requires_gradient_sync(!scene.no_sync || micro + 1 == scene.micro_steps);
      const Tensor loss = next_token_loss(sharded.forward(input), input);
      loss.backward();
      losses.push_back(loss.detach());
    }
    if (scene.clip != 0) sharded.clip_grad_norm_(scene.clip);
    optimizer->step();
    optimizer->zero_grad(scene.set_to_none);
    scene.after_step(sharded, group);
    if (scene.waits_each_step) sim::synchronize(group->rank());
  }
  return losses;
}

FsdpOptions complete(const Scene& scene, const Group& group) {
  FsdpOptions options = scene.options;
  options.process_group = group;
  options.device_id = device_of_rank(group->rank());
  if (!options.node_size) options.node_size = group->size() % 2 == 0 ? 2 : 1;
  return options;
}

}  // namespace

Gpt build(const Scene& scene) {
  Gpt module(scene.layers, scene.checkpointed, 32);
  fill_parameters(*module);
  return module;
}

Tensor device_tokens(int rank, int step) {
  return tokens_of(rank, step).to(device_of_rank(rank));
}

Tensor device_values(std::vector<std::int64_t> shape, int rank, int step) {
  return random_values(std::move(shape), static_cast<std::uint64_t>(100 * step + rank + 7))
      .to(device_of_rank(rank));
}

void name_lanes(const ShardedModule& sharded) {
  Streams& streams = internal::engine_of(sharded).streams();
  if (streams.on_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(streams.device().type());
  for (const auto& [lane, name] :
       {std::tuple(Lane::kUnshard, "unshard"), std::tuple(Lane::kReduce, "reduce")}) {
    const auto entered = streams.enter(lane);
    sim::name_stream(guard.getStream(streams.device()), name);
  }
}

void expect_near(const Tensor& found, const Tensor& expected, double tolerance,
                 const std::string& what) {
  if (expected.numel() == 0) return;
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double off = (found.cpu() - expected).abs().max().item<double>();
  EXPECT_LE(off, tolerance * scale) << what;
}

void run(const Scene& scene, const std::function<void(const Group&, const FsdpOptions&)>& body) {
  sim::set_progress(scene.progress);
  spawn_ranks(scene.world_size, [&](const Group& group) {
    body(group, complete(scene, group));
    sim::synchronize(group->rank());
  });
}

void run(const Scene& scene, const std::function<void(ShardedGpt&, const Group&)>& body) {
  run(scene, [&](const Group& group, FsdpOptions options) {
    options.auto_wrap_policy = module_wrap_policy<BlockImpl>();
    ShardedGpt sharded(build(scene), options);
    name_lanes(sharded);
    body(sharded, group);
  });
}

void train(const Scene& scene) {
  run(scene, [&](ShardedGpt& sharded, const Group& group) {
    const std::vector<Tensor> found = train_sharded(scene, sharded, group);
    scene.at_end(sharded, group);
    Gpt reference = build(scene);
    const std::vector<Tensor> expected = train_reference(scene, reference, group);
    for (std::size_t i = 0; i < found.size(); ++i)
      expect_near(found[i], expected[i], scene.tolerance, "loss " + std::to_string(i));
    const StateDict state = sharded.state_dict();
    if (scene.only_losses) return;
    for (const auto& item : reference->named_parameters())
      expect_near(*state.at(item.key()).as_tensor(), item.value().detach(), scene.tolerance,
                  item.key());
  });
}

}  // namespace fsdp::test
