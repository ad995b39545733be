// SPDX-License-Identifier: Apache-2.0
// What each option of a sharded module changes: a test of its name fails where the option is
// ignored, which tests/left_out/options.py tries for each.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/meta_device.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::HasSubstr;
using namespace test;  // the modules
using Sharded = FullyShardedDataParallel<Gpt>;

FsdpOptions block_options(const Group& group) {
  FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
  options.bucket_bytes = 0;
  return options;
}

// What the third step of a GPT of four blocks does, forward and backward apart.
struct Step {
  EngineStats forward;
  EngineStats backward;
};
Step third_step(const Group& group, const FsdpOptions& options) {
  Sharded sharded(filled_gpt(4), options);
  for (int step = 0; step < 2; ++step) gpt_loss(sharded, group->rank(), step).backward();
  const auto since = [&](const EngineStats& before) {
    EngineStats now = engine_of(sharded).stats();
    now.gathers -= before.gathers;
    now.prefetched_units -= before.prefetched_units;
    now.reductions -= before.reductions;
    return now;
  };
  Step result;
  const EngineStats begin = engine_of(sharded).stats();
  const Tensor loss = gpt_loss(sharded, group->rank(), 2);
  result.forward = since(begin);
  const EngineStats middle = engine_of(sharded).stats();
  loss.backward();
  result.backward = since(middle);
  return result;
}

std::int64_t elements_of(const ShardedModule& sharded) {
  std::int64_t result = 0;
  for (const Tensor& shard : sharded.parameters()) result += shard.numel();
  return result;
}

// The modules of forward see their arguments and parameters.
struct SeeingImpl : nn::Module {
  SeeingImpl()
      : a(register_module("a", nn::Linear(4, 4))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})))) {
    register_buffer("seen", torch::ones({4}));
  }
  Tensor forward(const Tensor& x) {
    input = x.scalar_type();
    weight = a->weight.scalar_type();
    norm_weight = norm->weight.scalar_type();
    ++calls;
    return norm(torch::linear(x.to(weight), a->weight, a->bias)) + seen().to(weight);
  }
  Tensor seen() { return named_buffers()["seen"]; }
  nn::Linear a;
  nn::LayerNorm norm;
  c10::ScalarType input{}, weight{}, norm_weight{};
  int calls = 0;
};
TORCH_MODULE(Seeing);

// Makes one step of it on two ranks, and looks.
void seen(const std::function<void(FsdpOptions&)>& set,
          const std::function<void(SeeingImpl&, ShardedModule&)>& look) {
  spawn_ranks(2, [&](const Group& group) {
    Seeing module;
    FsdpOptions options = options_over(group, module_wrap_policy<nn::LinearImpl>());
    set(options);
    FullyShardedDataParallel<Seeing> sharded(module, options);
    sharded.forward(torch::ones({2, 4}, device_of_rank(group->rank()))).sum().backward();
    look(*module, sharded);
  });
}

TEST(Options, replicate_group) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group->subgroup({group->rank()}));
    options.device_id = device_id_of_rank(group->rank());
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.node_size = 1;
    options.replicate_group = group;
    Sharded sharded(filled_gpt(), options);
    ASSERT_NE(engine_of(sharded).replicate_group(), nullptr);
    EXPECT_EQ(engine_of(sharded).replicate_group()->size(), 2);
  });
}

TEST(Options, device_mesh) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.process_group = nullptr;
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.device_mesh.emplace(group, std::vector<MeshDim>{{"copies", 2}, {"dp", 1}});
    Sharded sharded(filled_gpt(), options);
    EXPECT_EQ(engine_of(sharded).shard_group()->size(), 1);
    EXPECT_EQ(engine_of(sharded).replicate_group(), group);
  });
}

TEST(Options, node_size) {
  spawn_ranks(4, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.node_size = 2;
    Sharded sharded(filled_gpt(), options);
    EXPECT_EQ(engine_of(sharded).shard_group()->size(), 2);
  });
}

TEST(Options, sharding_strategy) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    // Kept from forward to backward: nothing is gathered again.
    options.sharding_strategy = ShardingStrategy::kShardGradOp;
    EXPECT_EQ(third_step(group, options).backward.gathers, 0);
    options.sharding_strategy = ShardingStrategy::kNoShard;
    EXPECT_EQ(elements_of(Sharded(filled_gpt(), options)), [] {
      std::int64_t all = 0;
      for (const Tensor& parameter : filled_gpt()->parameters()) all += parameter.numel();
      return all;
    }());
  });
}

TEST(Options, cpu_offload) {
  if (!on_sim()) GTEST_SKIP() << "needs a device beside the host";
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.cpu_offload.offload_params = true;
    Sharded sharded(filled_gpt(), options);
    for (const Tensor& shard : sharded.parameters()) EXPECT_TRUE(shard.is_cpu());
  });
}

TEST(Options, auto_wrap_policy) {
  spawn_ranks(1, [](const Group& group) {
    EXPECT_EQ(Sharded(filled_gpt(4), block_options(group)).unit_names().size(), 5U);
  });
}

TEST(Options, backward_prefetch) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.backward_prefetch = BackwardPrefetch::kNone;
    EXPECT_EQ(third_step(group, options).backward.prefetched_units, 0);
    options.backward_prefetch = BackwardPrefetch::kBackwardPost;
    EXPECT_GT(third_step(group, options).backward.prefetched_units, 0);
  });
}

TEST(Options, forward_prefetch) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    EXPECT_EQ(third_step(group, options).forward.prefetched_units, 0);
    options.forward_prefetch = true;
    EXPECT_GT(third_step(group, options).forward.prefetched_units, 0);
  });
}

TEST(Options, bucket_bytes) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.bucket_bytes = 0;
    EXPECT_EQ(third_step(group, options).backward.reductions, 5);
    options.bucket_bytes = 4 << 20;
    EXPECT_EQ(third_step(group, options).backward.reductions, 1);
  });
}

TEST(Options, use_orig_params) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.use_orig_params = false;
    EXPECT_EQ(Sharded(filled_gpt(4), options).parameters().size(), 5U);
  });
}

TEST(Options, param_dtype) {
  seen([](FsdpOptions& options) { options.mixed_precision.param_dtype = torch::kBFloat16; },
       [](SeeingImpl& module, ShardedModule& sharded) {
         EXPECT_EQ(module.weight, torch::kBFloat16);
         EXPECT_EQ(sharded.parameters().front().scalar_type(), torch::kFloat);
       });
}

TEST(Options, reduce_dtype) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.mixed_precision.reduce_dtype = torch::kDouble;
    Sharded sharded(filled_gpt(), options);
    int calls = 0;
    sharded.register_comm_hook([&](const Group&, Tensor& whole, Tensor& rows) {
      EXPECT_EQ(whole.scalar_type(), torch::kDouble);
      rows.zero_();
      ++calls;
    });
    gpt_loss(sharded, group->rank(), 0).backward();
    EXPECT_GT(calls, 0);
  });
}

TEST(Options, buffer_dtype) {
  seen([](FsdpOptions& options) { options.mixed_precision.buffer_dtype = torch::kBFloat16; },
       [](SeeingImpl& module, ShardedModule&) {
         EXPECT_EQ(module.seen().scalar_type(), torch::kBFloat16);
       });
}

TEST(Options, keep_low_precision_grads) {
  seen(
      [](FsdpOptions& options) {
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.keep_low_precision_grads = true;
      },
      [](SeeingImpl&, ShardedModule& sharded) {
        EXPECT_EQ(sharded.parameters().front().grad().scalar_type(), torch::kBFloat16);
      });
}

TEST(Options, cast_root_forward_inputs) {
  seen(
      [](FsdpOptions& options) {
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.cast_root_forward_inputs = false;
      },
      [](SeeingImpl& module, ShardedModule&) { EXPECT_EQ(module.input, torch::kFloat); });
}

TEST(Options, cast_forward_inputs) {
  seen(
      [](FsdpOptions& options) {
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.cast_root_forward_inputs = false;
        options.mixed_precision.cast_forward_inputs = true;
      },
      [](SeeingImpl& module, ShardedModule&) { EXPECT_EQ(module.input, torch::kBFloat16); });
}

TEST(Options, module_classes_to_ignore) {
  seen(
      [](FsdpOptions& options) {
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.module_classes_to_ignore = instances_of<nn::LayerNormImpl>();
      },
      [](SeeingImpl& module, ShardedModule&) { EXPECT_EQ(module.norm_weight, torch::kFloat); });
}

TEST(Options, ignored_modules) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    FsdpOptions options = block_options(group);
    options.ignored_modules = {module->ln.ptr()};
    EXPECT_EQ(Sharded(module, options).unmanaged().size(), 2U);
  });
}

TEST(Options, ignored_states) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    FsdpOptions options = block_options(group);
    options.ignored_states = {module->head->weight};
    EXPECT_EQ(Sharded(module, options).unmanaged().size(), 1U);
  });
}

TEST(Options, param_init_fn) {
  spawn_ranks(2, [](const Group& group) {
    std::optional<MetaDevice> meta(std::in_place);
    Gpt module(1);
    meta.reset();
    FsdpOptions options = block_options(group);
    options.param_init_fn = [&](nn::Module& part) {
      to_empty(part, device_of_rank(group->rank()), /*recurse=*/false);
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : part.parameters(/*recurse=*/false)) parameter.fill_(0.75);
    };
    Sharded sharded(module, options);
    for (const Tensor& shard : sharded.parameters())
      EXPECT_TRUE(shard.numel() == 0 || torch::all(shard == 0.75).item<bool>());
  });
}

TEST(Options, device_id) {
  if (!on_sim()) GTEST_SKIP() << "needs two devices";
  spawn_ranks(1, [](const Group& group) {
    FsdpOptions options = block_options(group);
    EXPECT_EQ(Sharded(filled_gpt(), options).parameters().front().device(), device_of_rank(0));
    // The group's has to be the same.
    options.device_id = device_of_rank(1);
    EXPECT_THAT(error_of([&] { Sharded(filled_gpt(), options); }), HasSubstr("device_id"));
  });
}

TEST(Options, sync_module_states) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : module->parameters()) parameter.fill_(group->rank() + 1.0);
    }
    FsdpOptions options = block_options(group);
    options.sync_module_states = true;
    Sharded sharded(module, options);
    for (const Tensor& shard : sharded.parameters())
      EXPECT_TRUE(shard.numel() == 0 || torch::all(shard == 1).item<bool>());
  });
}

TEST(Options, activation_checkpointing_policy) {
  spawn_ranks(1, [](const Group& group) {
    struct OuterImpl : nn::Module {
      OuterImpl() : inner(register_module("inner", Seeing())) {}
      Tensor forward(const Tensor& x) { return checkpoint_module(inner, x); }
      Seeing inner;
    };
    auto module = std::make_shared<OuterImpl>();
    FsdpOptions options = options_over(group);
    options.activation_checkpointing_policy = instances_of<SeeingImpl>();
    FullyShardedDataParallel<OuterImpl> sharded(module, options);
    sharded.forward(torch::ones({2, 4}, device_of_rank(0))).sum().backward();
    EXPECT_EQ(module->inner->calls, 2);
  });
}

}  // namespace
}  // namespace fsdp
