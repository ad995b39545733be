// SPDX-License-Identifier: Apache-2.0
// Programs that call a sharded module in streams of their own, on simulated devices.
#include <optional>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "libfsdp/comm_hooks.h"
#include "libfsdp/fully_shard.h"
#include "libfsdp/internal/comm/own_work.h"
#include "tests/libfsdp/sim/scene.h"
#include "tests/libfsdp/sim/stack.h"
#include "tests/support/test_device.h"

namespace fsdp::test {
namespace {

c10::Stream default_stream(int rank) {
  return c10::Stream(c10::Stream::DEFAULT, device_of_rank(rank));
}

// Tokens of several steps.  A copy to the device has the host wait for a stream, and whatever comes
// after it is ordered: made in between, they would hide what these scenes are for.
std::vector<Tensor> tokens_of(int rank, int steps) {
  std::vector<Tensor> result;
  for (int step = 0; step < steps; ++step) result.push_back(device_tokens(rank, step));
  sim::synchronize(rank);
  return result;
}

// Sizes of memory, in bytes: whatever was given up has one of them.
std::vector<std::int64_t> sizes_up_to(std::int64_t most) {
  std::vector<std::int64_t> result;
  for (std::int64_t bytes = 512; bytes <= most; bytes += 512) result.push_back(bytes);
  return result;
}

TEST(SimCallerStreams, whole_steps_in_another_stream_than_the_default_one) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const int rank = group->rank();
    const c10::Stream side = sim::new_stream(rank, "side");
    sim::order(default_stream(rank), side);
    const c10::StreamGuard entered(side);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (const Tensor& tokens : tokens_of(rank, 3)) {
      next_token_loss(sharded.forward(tokens), tokens).backward();
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
    bool on_side = false;
    for (const Tensor& tokens : tokens_of(rank, 5)) {
      sim::order(on_side ? main : side, on_side ? side : main);
      const c10::StreamGuard entered(on_side ? side : main);
      on_side = !on_side;
      next_token_loss(sharded.forward(tokens), tokens).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(SimCallerStreams, shards_are_written_in_the_stream_of_the_next_forward) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const torch::NoGradGuard no_grad;
    const int rank = group->rank();
    const c10::Stream main = default_stream(rank);
    const c10::Stream side = sim::new_stream(rank, "side");
    bool on_side = false;
    for (const Tensor& tokens : tokens_of(rank, 5)) {
      sim::order(on_side ? main : side, on_side ? side : main);
      const c10::StreamGuard entered(on_side ? side : main);
      on_side = !on_side;
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
      sharded.forward(tokens);
    }
  });
}

TEST(SimCallerStreams, shards_are_written_in_the_stream_of_the_next_summon) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const torch::NoGradGuard no_grad;
    const int rank = group->rank();
    const c10::Stream main = default_stream(rank);
    const c10::Stream side = sim::new_stream(rank, "side");
    sharded.forward(tokens_of(rank, 1).front());
    bool on_side = true;
    for (int i = 0; i < 3; ++i) {
      sim::order(on_side ? main : side, on_side ? side : main);
      const c10::StreamGuard entered(on_side ? side : main);
      on_side = !on_side;
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
      const auto scope = sharded.summon_full_params();
    }
  });
}

// The optimizer runs in a stream that joins the backward's.
TEST(SimCallerStreams, an_optimizer_in_a_stream_of_its_own) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const int rank = group->rank();
    const c10::Stream main = default_stream(rank);
    const c10::Stream side = sim::new_stream(rank, "side");
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (const Tensor& tokens : tokens_of(rank, 4)) {
      next_token_loss(sharded.forward(tokens), tokens).backward();
      sim::order(main, side);
      {
        const c10::StreamGuard entered(side);
        optimizer.step();
        optimizer.zero_grad();
      }
      sim::order(side, main);
    }
  });
}

// ---- forwards and backwards that throw, after which shards are written

// Throws in its backward.
struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list&) {
    TORCH_CHECK(false, "backward throws");
  }
};

enum class Error { kAfterForward, kAtEndOfBackward, kAmidBackward };

void write_after_errors(Error error, bool ahead, bool offloaded = false) {
  Scene scene;
  scene.options.cpu_offload.offload_params = offloaded;
  scene.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  scene.options.forward_prefetch = ahead;
  run(scene, [&](const Group& group, const FsdpOptions& options) {
    Stack module;
    fill_parameters(*module);
    FullyShardedDataParallel<Stack> sharded(module, options);
    name_lanes(sharded);
    std::vector<Tensor> values;
    for (int i = 0; i < 6; ++i) values.push_back(device_values({3, 16}, group->rank(), i));
    sim::synchronize(group->rank());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool fails = i % 2 == 1;
      module->throws = fails && error == Error::kAfterForward;
      // Layers that do not come were gathered in vain.
      if (module->throws) module->order = {0, 1, 2};
      module->before = [&](int layer, nn::LinearImpl&, const Tensor& x) {
        const bool here = fails && ((error == Error::kAtEndOfBackward && layer == 0) ||
                                    (error == Error::kAmidBackward && layer == 3));
        return here ? ThrowInBackward::apply(x) : x;
      };
      try {
        sharded.forward(values[i].clone().requires_grad_()).square().mean().backward();
        EXPECT_FALSE(fails);
      } catch (const std::exception&) {
        EXPECT_TRUE(fails);
      }
      module->order = {0, 1, 2, 3, 4, 5};
      // Memory that the step gave up is taken again.
      for (const std::int64_t bytes : sizes_up_to(1 << 13))
        torch::ones({bytes}, torch::dtype(torch::kByte).device(values[i].device()));
      // A backward throws before its own thread has ended it.
      if (error != Error::kAfterForward) sharded.zero_grad();
      const torch::NoGradGuard no_grad;
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
      sharded.zero_grad();
    }
  });
}

TEST(SimCallerStreams, shards_are_written_after_a_forward_that_threw) {
  write_after_errors(Error::kAfterForward, false);
}
TEST(SimCallerStreams, shards_are_written_after_a_forward_that_threw_with_gathers_ahead) {
  write_after_errors(Error::kAfterForward, true);
}
TEST(SimCallerStreams, shards_are_written_after_a_backward_that_threw) {
  write_after_errors(Error::kAtEndOfBackward, false);
}
TEST(SimCallerStreams, shards_are_written_after_a_backward_that_threw_with_a_gather_ahead) {
  write_after_errors(Error::kAmidBackward, false);
}

TEST(SimCallerStreams, offloaded_shards_are_written_after_a_forward_that_threw) {
  write_after_errors(Error::kAfterForward, true, /*offloaded=*/true);
}
TEST(SimCallerStreams, offloaded_shards_are_written_after_a_backward_that_threw) {
  write_after_errors(Error::kAmidBackward, false, /*offloaded=*/true);
}

TEST(SimCallerStreams, memory_is_taken_again_after_a_communication_hook_that_threw) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    bool fails = false;
    sharded.register_comm_hook([&](const Group& ranks, Tensor& unsharded, Tensor& mean) {
      unsharded.mul_(0.5);
      TORCH_CHECK(!fails, "the hook throws");
      reduce_scatter_hook()(ranks, unsharded, mean);
    });
    for (const Tensor& tokens : tokens_of(group->rank(), 4)) {
      try {
        next_token_loss(sharded.forward(tokens), tokens).backward();
        EXPECT_FALSE(fails);
      } catch (const std::exception&) {
        EXPECT_TRUE(fails);
      }
      for (const std::int64_t bytes : sizes_up_to(1 << 17))
        torch::ones({bytes}, torch::dtype(torch::kByte).device(tokens.device()));
      sharded.zero_grad();
      fails = !fails;
    }
  });
}

// Only zero_grad() orders the stream that writes them after the backward's gathers.
TEST(SimCallerStreams, shards_are_written_in_another_stream_after_a_backward_that_threw) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  run(scene, [&](const Group& group, const FsdpOptions& options) {
    Stack module;
    fill_parameters(*module);
    FullyShardedDataParallel<Stack> sharded(module, options);
    name_lanes(sharded);
    const c10::Stream main = default_stream(group->rank());
    const c10::Stream side = sim::new_stream(group->rank(), "side");
    const Tensor value = device_values({3, 16}, group->rank(), 0).requires_grad_();
    sim::synchronize(group->rank());
    for (int i = 0; i < 6; ++i) {
      const bool fails = i % 2 == 1;
      module->before = [&](int layer, nn::LinearImpl&, const Tensor& x) {
        return fails && layer == 3 ? ThrowInBackward::apply(x) : x;
      };
      const Tensor loss = sharded.forward(value).square().mean();
      sim::order(main, side);
      if (fails)
        EXPECT_THROW(loss.backward(), std::exception);
      else
        loss.backward();
      if (!fails) sim::order(main, side);
      {
        const c10::StreamGuard entered(side);
        sharded.zero_grad();
        const torch::NoGradGuard no_grad;
        for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
      }
      sim::order(side, main);
    }
  });
}

// A kernel of the user's own reads the memory: the engine does not see it.
TEST(SimCallerStreams, what_is_unsharded_is_there_for_the_stream_that_waits_for_it) {
  run(Scene(), [](const Group& group, const FsdpOptions& given) {
    Gpt module(2, false);
    fill_parameters(*module);
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = given.device_id;
    const auto block = fully_shard(module->blocks->ptr(1), options);
    const auto sharded = fully_shard(module, options);
    const c10::Stream side = sim::new_stream(group->rank(), "side");
    sim::synchronize(group->rank());
    UnshardHandle handle = block->unshard(/*async=*/true);
    const c10::StreamGuard entered(side);
    handle.wait();
    const internal::OwnWork unseen;
    const Tensor copy = module->blocks->ptr<BlockImpl>(1)->up->weight.detach().clone();
  });
}

// ---- a forward in several streams

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

// Every other forward takes fewer layers, and throws then if `throws`.  The main stream writes the
// shards at once.
void write_after_layers_aside(bool throws) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  scene.options.forward_prefetch = true;
  run(scene, [&](const Group& group, const FsdpOptions& options) {
    Aside module;
    fill_parameters(*module);
    module->side = sim::new_stream(group->rank(), "side");
    FullyShardedDataParallel<Aside> sharded(module, options);
    name_lanes(sharded);
    const torch::NoGradGuard no_grad;
    const Tensor value = device_values({3, 16}, group->rank(), 0);
    sim::synchronize(group->rank());
    for (int i = 0; i < 4; ++i) {
      const bool fewer = i % 2 == 1;
      module->order = fewer ? Order{0, 1, 2} : Order{0, 1, 2, 3, 4, 5};
      module->throws = fewer && throws;
      if (module->throws)
        EXPECT_THROW(sharded.forward(value), std::exception);
      else
        sharded.forward(value);
      for (Tensor& shard : sharded.parameters()) shard.mul_(0.99);
    }
  });
}

// What was gathered in vain, for a layer that did not come, is not waited for by the side stream.
TEST(SimCallerStreams, a_forward_ends_in_another_stream_than_its_layers_ran_in) {
  write_after_layers_aside(/*throws=*/false);
}
// Nothing has the main stream wait for the layers.
TEST(SimCallerStreams, a_forward_throws_in_another_stream_than_its_callers) {
  write_after_layers_aside(/*throws=*/true);
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

enum class Side { kOwnLayer, kSameLayer, kFrozenLayer };

void train_fork(Side of_side) {
  Scene scene;
  scene.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  run(scene, [&](const Group& group, const FsdpOptions& options) {
    Fork module;
    fill_parameters(*module);
    module->side = sim::new_stream(group->rank(), "side");
    module->shared = of_side == Side::kSameLayer;
    if (of_side == Side::kFrozenLayer)
      for (Tensor& parameter : module->a->parameters()) parameter.requires_grad_(false);
    FullyShardedDataParallel<Fork> sharded(module, options);
    name_lanes(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    std::vector<Tensor> values;
    for (int step = 0; step < 3; ++step)
      values.push_back(device_values({3, 16}, group->rank(), step));
    sim::synchronize(group->rank());
    // Gradients of inputs have backwards use the parameters, in the streams of their layers.
    for (const Tensor& value : values) {
      sharded.forward(value.clone().requires_grad_()).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(SimCallerStreams, two_layers_in_two_streams_of_a_forward) {
  train_fork(Side::kOwnLayer);
}
TEST(SimCallerStreams, one_layer_in_two_streams_of_a_forward) {
  train_fork(Side::kSameLayer);
}
TEST(SimCallerStreams, a_backward_whose_last_parameters_are_used_aside) {
  train_fork(Side::kFrozenLayer);
}

}  // namespace
}  // namespace fsdp::test
