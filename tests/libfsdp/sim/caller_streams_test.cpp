// SPDX-License-Identifier: Apache-2.0
// Programs that call a sharded module in streams of their own, on simulated devices.
#include <optional>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/libfsdp/sim/scene.h"
#include "tests/libfsdp/sim/stack.h"
#include "tests/support/test_device.h"

namespace fsdp::test {
namespace {

c10::Stream default_stream(int rank) {
  return c10::Stream(c10::Stream::DEFAULT, device_of_rank(rank));
}

void step_on(ShardedGpt& sharded, torch::optim::Optimizer& optimizer, int rank, int step) {
  token_loss(sharded, rank, step).backward();
  optimizer.step();
  optimizer.zero_grad();
}

TEST(SimCallerStreams, whole_steps_in_another_stream_than_the_default_one) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const int rank = group->rank();
    const c10::Stream side = sim::new_stream(rank, "side");
    sim::order(default_stream(rank), side);
    const c10::StreamGuard entered(side);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      token_loss(sharded, rank, step).backward();
      sharded.clip_grad_norm_(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(SimCallerStreams, steps_in_two_streams_by_turns) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const int rank = group->rank();
    const c10::Stream main = default_stream(rank);
    const c10::Stream side = sim::new_stream(rank, "side");
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      const bool on_side = step % 2 == 1;
      sim::order(on_side ? main : side, on_side ? side : main);
      const c10::StreamGuard entered(on_side ? side : main);
      step_on(sharded, optimizer, rank, step);
    }
  });
}

TEST(SimCallerStreams, shards_are_written_in_the_stream_of_the_next_forward) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const torch::NoGradGuard no_grad;
    const int rank = group->rank();
    const c10::Stream main = default_stream(rank);
    const c10::Stream side = sim::new_stream(rank, "side");
    for (int step = 0; step < 4; ++step) {
      const bool on_side = step % 2 == 1;
      sim::order(on_side ? main : side, on_side ? side : main);
      const c10::StreamGuard entered(on_side ? side : main);
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
      sharded.forward(device_tokens(rank, step));
    }
  });
}

// All layers run in a side stream, which the main one waits for.
struct AsideImpl : StackImpl {
  Tensor forward(const Tensor& x) {
    const c10::Stream main = sim::current_stream(x.device().index());
    sim::order(main, *side);
    Tensor y;
    {
      const c10::StreamGuard entered(*side);
      y = StackImpl::forward(x);
    }
    sim::order(*side, main);
    return y;
  }
  std::optional<c10::Stream> side;
};
TORCH_MODULE(Aside);

// What was gathered in vain, for a layer that did not come, is not waited for by the side stream.
TEST(SimCallerStreams, a_forward_ends_in_another_stream_than_its_layers_ran_in) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  scene.options.forward_prefetch = true;
  run(scene, [](const Group& group, const FsdpOptions& options) {
    Aside module;
    fill_parameters(*module);
    module->side = sim::new_stream(group->rank(), "side");
    FullyShardedDataParallel<Aside> sharded(module, options);
    name_lanes(sharded);
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 4; ++i) {
      module->order = i % 2 == 0 ? Order{0, 1, 2, 3, 4, 5} : Order{0, 1, 2};
      sharded.forward(device_values({3, 16}, group->rank(), i));
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
    }
  });
}

// Written as without sharding: a side stream forks from the main one and joins it, and because a
// parameter is always there, both may use it in between.
struct ForkImpl : nn::Module {
  ForkImpl()
      : a(register_module("a", nn::Linear(16, 16))), b(register_module("b", nn::Linear(16, 16))) {}
  Tensor forward(const Tensor& x) {
    const c10::Stream main = sim::current_stream(x.device().index());
    Tensor y;
    sim::order(main, *side);
    {
      const c10::StreamGuard entered(*side);
      y = torch::tanh(a(x));
    }
    const Tensor z = torch::tanh(shared ? a(x * 2) : b(x));
    sim::order(*side, main);
    return y + z;
  }
  nn::Linear a, b;
  std::optional<c10::Stream> side;
  bool shared = false;
};
TORCH_MODULE(Fork);

void train_fork(bool shared) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  run(scene, [&](const Group& group, const FsdpOptions& options) {
    Fork module;
    fill_parameters(*module);
    module->side = sim::new_stream(group->rank(), "side");
    module->shared = shared;
    FullyShardedDataParallel<Fork> sharded(module, options);
    name_lanes(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      sharded.forward(device_values({3, 16}, group->rank(), step)).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(SimCallerStreams, two_layers_in_two_streams_of_a_forward) {
  train_fork(/*shared=*/false);
}
TEST(SimCallerStreams, one_layer_in_two_streams_of_a_forward) {
  train_fork(/*shared=*/true);
}

}  // namespace
}  // namespace fsdp::test
