// SPDX-License-Identifier: Apache-2.0
// Modules that are initialized and cut one after the other get the values that they get whole.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/construction/construction.h"
#include "libfsdp/meta_device.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Ranks are threads, and each draws its own numbers.
thread_local at::Generator numbers;
thread_local int resets = 0;

void seed() {
  numbers = at::detail::createCPUGenerator(17);
  resets = 0;
}

void draw(const at::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  tensor.detach().copy_(torch::randn(tensor.sizes(), numbers));
}

// A layer with a buffer that is drawn, too.
struct LayerImpl : nn::Module, ResetParameters {
  LayerImpl(std::int64_t rows, std::int64_t columns)
      : weight(register_parameter("weight", torch::zeros({rows, columns}))),
        bias(register_parameter("bias", torch::zeros({rows}))),
        scale(register_buffer("scale", torch::zeros({rows}))) {}
  void reset_parameters() override {
    ++resets;
    for (const auto& tensor : {weight, bias, scale}) draw(tensor);
  }
  at::Tensor weight, bias, scale;
};
TORCH_MODULE(Layer);

// A unit with a parameter of its own, a frozen one and one that two of its layers share.
struct StageImpl : nn::Module, ResetParameters {
  StageImpl()
      : first(register_module("first", Layer(5, 4))),
        second(register_module("second", Layer(4, 5))),
        gain(register_parameter("gain", torch::zeros({3, 2}))) {
    second->register_parameter("shared", first->weight);
    first->bias.set_requires_grad(false);
  }
  void reset_parameters() override { draw(gain); }
  Layer first, second;
  at::Tensor gain;
};
TORCH_MODULE(Stage);

struct TallImpl : nn::Module, ResetParameters {
  TallImpl()
      : table(register_module("table", Layer(7, 4))),
        stages(register_module("stages", nn::ModuleList())),
        ignored(register_module("ignored", Layer(2, 2))),
        head(register_module("head", Layer(7, 4))) {
    for (int i = 0; i < 3; ++i) stages->push_back(Stage());
    head->weight = table->weight;  // tied
    marks = register_buffer("marks", torch::zeros({3}, torch::kLong));
    mask = register_buffer("mask", torch::zeros({2}, torch::kBool));
    offset = register_parameter("offset", torch::zeros({}));
  }
  void reset_parameters() override {
    draw(offset);
    marks.fill_(3);
    mask.fill_(true);
  }
  Layer table;
  nn::ModuleList stages;
  Layer ignored, head;
  at::Tensor marks, mask, offset;
};
TORCH_MODULE(Tall);

template <typename Holder>
Holder on_meta() {
  const MetaDevice meta;
  return Holder();
}

FsdpOptions options_for(const Group& group) {
  FsdpOptions options;
  options.process_group = group;
  options.device_id = test::device_id_of_rank(group->rank());
  options.auto_wrap_policy = module_wrap_policy<Stage>();
  options.use_orig_params = true;
  if (group->size() % 2 == 0) options.node_size = 2;
  return options;
}

// Compares every tensor that is not on the meta device, bit by bit.
template <typename Holder>
void expect_values(FullyShardedDataParallel<Holder>& sharded, const Holder& expected) {
  const FullParams scope = sharded.summon_full_params({.writeback = false});
  const auto compare = [](const auto& found, const auto& wanted) {
    ASSERT_EQ(found.keys(), wanted.keys());
    for (const auto& item : wanted) {
      const at::Tensor& tensor = found[item.key()];
      EXPECT_EQ(tensor.requires_grad(), item.value().requires_grad()) << item.key();
      EXPECT_EQ(tensor.is_meta(), item.value().is_meta()) << item.key();
      if (tensor.is_meta()) continue;
      EXPECT_TRUE(torch::equal(tensor.cpu(), item.value())) << item.key();
    }
  };
  compare(sharded.module()->named_parameters(), expected->named_parameters());
  compare(sharded.module()->named_buffers(), expected->named_buffers());
}

template <typename Holder>
Holder materialized(const std::vector<std::string>& ignored = {}) {
  seed();
  Holder module = on_meta<Holder>();
  std::vector<const nn::Module*> left_out;
  for (const auto& item : module->named_modules()) {
    if (std::find(ignored.begin(), ignored.end(), item.key()) != ignored.end())
      left_out.push_back(item.value().get());
  }
  materialize(*module, torch::kCPU, {}, left_out);
  return module;
}

TEST(ConstructionValues, values_are_those_of_the_module_when_it_is_materialized_whole) {
  for (const int world_size : {1, 2, 3}) {
    for (const bool offload : {false, true}) {
      spawn_ranks(world_size, [&](const Group& group) {
        const Tall expected = materialized<Tall>({"ignored"});
        seed();
        Tall module = on_meta<Tall>();
        FsdpOptions options = options_for(group);
        options.cpu_offload.offload_params = offload;
        options.ignored_modules = {module->ignored.ptr()};
        FullyShardedDataParallel<Tall> sharded(module, options);
        expect_values(sharded, expected);
      });
    }
  }
}

TEST(ConstructionValues, a_module_that_resets_those_below_it_is_cut_after_that) {
  for (const int world_size : {1, 2}) {
    spawn_ranks(world_size, [&](const Group& group) {
      auto module = [] {
        const MetaDevice meta;
        return nn::Transformer(nn::TransformerOptions(16, 2, 1, 1));
      }();
      FsdpOptions options = options_for(group);
      options.auto_wrap_policy = module_wrap_policy<nn::TransformerEncoderLayerImpl>();
      FullyShardedDataParallel<nn::Transformer> sharded(module, options);
      const FullParams scope = sharded.summon_full_params({.writeback = false});
      for (const auto& item : module->named_parameters()) {
        if (item.value().dim() < 2) continue;
        // The bound of Xavier's uniform distribution, which a layer alone would not keep.
        // It is rounded to the tensor's float, and a value may be the bound itself.
        const auto bound = static_cast<float>(
            std::sqrt(6.0 / static_cast<double>(item.value().size(0) + item.value().size(1))));
        const auto most = item.value().abs().max().item<float>();
        EXPECT_LE(most, bound) << item.key();
        EXPECT_GT(most, 0.9F * bound) << item.key();
      }
    });
  }
}

TEST(ConstructionValues, modules_in_memory_are_cut_and_moved_to_the_device) {
  for (const int world_size : {1, 3}) {
    spawn_ranks(world_size, [&](const Group& group) {
      const Tall expected = materialized<Tall>();
      Tall module = materialized<Tall>();
      const at::Tensor weight = module->stages[1]->as<StageImpl>()->first->weight;
      weight.set_data(weight.detach().t().contiguous().t());
      const FsdpOptions options = options_for(group);
      FullyShardedDataParallel<Tall> sharded(module, options);
      EXPECT_EQ(module->marks.device(), test::device_of_rank(group->rank()));
      expect_values(sharded, expected);
    });
  }
}

TEST(ConstructionValues, what_is_changed_too_late_is_named) {
  const auto refused = [](const std::function<void(Tall&, nn::Module&)>& write) {
    return error_of([&] {
      spawn_ranks(2, [&](const Group& group) {
        Tall module = on_meta<Tall>();
        FsdpOptions options = options_for(group);
        options.param_init_fn = [&](nn::Module& each) {
          to_empty(each, test::device_of_rank(group->rank()), /*recurse=*/false);
          const torch::NoGradGuard no_grad;
          for (auto& tensor : each.parameters(/*recurse=*/false)) tensor.fill_(2);
          write(module, each);
        };
        const FullyShardedDataParallel<Tall> sharded(module, options);
      });
    });
  };
  const auto early = [](Tall& module) { return module->stages[0]->as<StageImpl>()->second->bias; };
  EXPECT_THAT(refused([&](Tall& module, nn::Module& each) {
                if (&each == module->stages[1].get()) early(module).fill_(3);
              }),
              AllOf(HasSubstr("'stages.0.second.bias'"), HasSubstr("sharded already")));
  EXPECT_THAT(refused([&](Tall& module, nn::Module& each) {
                if (&each == module->stages[1].get()) early(module).set_data(torch::ones({4}));
              }),
              AllOf(HasSubstr("'stages.0.second.bias'"), HasSubstr("got other memory")));
  EXPECT_THAT(refused([&](Tall& module, nn::Module& each) {
                if (&each == module->stages[1].get())
                  each.register_parameter("late", torch::ones({4}));
              }),
              AllOf(HasSubstr("'stages.1.late'"), HasSubstr("register it earlier")));
  EXPECT_THAT(refused([&](Tall& module, nn::Module& each) {
                if (&each == module->stages[1].get())
                  module->stages[1]->as<StageImpl>()->gain.set_requires_grad(false);
              }),
              AllOf(HasSubstr("'stages.1.gain'"), HasSubstr("freeze parameters before")));
}

// ---- values of rank 0

// Has tensors that do not fit a message, and many that do.
struct WideImpl : TallImpl {
  WideImpl() : wide(register_module("wide", Layer(1025, 4096))) {
    for (int i = 0; i < 40; ++i)
      register_module("small" + std::to_string(i), Layer(3 + i % 3, 1 + i % 5));
  }
  Layer wide;
};
TORCH_MODULE(Wide);

TEST(ConstructionValues, ranks_take_the_values_of_rank_0_and_initialize_nothing) {
  for (const int world_size : {2, 4}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard,
                                ShardingStrategy::kHybridShard}) {
      for (const bool in_memory : {false, true}) {
        spawn_ranks(world_size, [&](const Group& group) {
          const bool first = group->rank() == 0;
          const Wide expected = materialized<Wide>();
          FsdpOptions options = options_for(group);
          options.sync_module_states = true;
          options.sharding_strategy = strategy;
          options.cpu_offload.offload_params = in_memory;
          if (in_memory) options.mixed_precision.reduce_dtype = torch::kBFloat16;
          // Rank 0 has values, or makes them.
          Wide module = first && in_memory ? materialized<Wide>() : on_meta<Wide>();
          // What else refers to a tensor on one rank changes nothing.
          const at::Tensor held = module->stages[0]->as<StageImpl>()->gain;
          seed();
          const auto before = internal::calls_of(*group).sequence;
          FullyShardedDataParallel<Wide> sharded(module, options);
          // 110 parameters and 52 buffers.
          EXPECT_LE(internal::calls_of(*group).sequence - before, 20U);
          EXPECT_EQ(resets, first && !in_memory ? 50 : 0);
          expect_values(sharded, expected);
        });
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
