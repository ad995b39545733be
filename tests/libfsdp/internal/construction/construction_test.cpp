// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/construction/construction.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/meta_device.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

template <typename F>
auto on_meta(const F& build) {
  const MetaDevice meta;
  return build();
}

// Modules whose parts are initialized by others, and parameters that several modules have.
struct MixedImpl : nn::Module {
  MixedImpl()
      : embedding(register_module("embedding", nn::Embedding(13, 8))),
        attention(register_module("attention", nn::MultiheadAttention(8, 2))),
        inner(register_module(
            "inner",
            nn::Sequential(nn::Linear(8, 8), nn::LayerNorm(std::vector<std::int64_t>{8})))),
        softmax(register_module(
            "softmax",
            nn::AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(32, 20, {5, 9})))),
        head(register_module("head", nn::Linear(8, 13))),
        own(register_parameter("own", torch::zeros({3, 5}))) {
    // The registry of head keeps the weight that head was made with.
    head->weight = embedding->weight;
    inner->push_back(nn::Linear(8, 8));
    register_buffer("count", torch::ones({4}));
  }

  nn::Embedding embedding;
  nn::MultiheadAttention attention;
  nn::Sequential inner;
  nn::AdaptiveLogSoftmaxWithLoss softmax;
  nn::Linear head;
  Tensor own;
};
TORCH_MODULE(Mixed);

FsdpOptions options_of(const Group& group, bool units, bool sync) {
  FsdpOptions options = options_over(
      group, units ? module_wrap_policy<nn::LinearImpl, nn::EmbeddingImpl, nn::LayerNormImpl>()
                   : WrapPolicy());
  // Tied parameters lie in one unit.
  options.sync_module_states = sync;
  return options;
}

// What materialize() makes of the whole module is the truth.
TEST(Construction, modules_get_the_values_that_they_get_as_a_whole) {
  for (const int world : {1, 2, 3}) {
    for (const bool units : {false, true}) {
      for (const bool sync : {false, true}) {
        spawn_ranks(world, [&](const Group& group) {
          const c10::Device device = test::device_of_rank(group->rank());
          const auto build = [] {
            Mixed module;
            // Only its own parameter has nobody to initialize it.
            module->own = module->register_parameter("other", torch::zeros({1}));
            return module;
          };
          const auto init = [&](nn::Module& module) {
            to_empty(module, device, /*recurse=*/false);
            const torch::NoGradGuard no_grad;
            float value = 1;
            for (Tensor tensor : module.parameters(/*recurse=*/false)) tensor.fill_(value++);
            for (Tensor tensor : module.buffers(/*recurse=*/false)) tensor.fill_(value++);
          };
          Mixed whole = on_meta(build);
          materialize(*whole, device, init);
          Mixed cut = on_meta(build);
          FsdpOptions options = options_of(group, units, sync);
          options.param_init_fn = init;
          FullyShardedDataParallel<Mixed> sharded(cut, options);
          const auto scope = sharded.summon_full_params();
          const auto expected = whole->named_parameters();
          for (const auto& item : cut->named_parameters())
            EXPECT_TRUE(torch::equal(item.value().cpu(), expected[item.key()].cpu())) << item.key();
          EXPECT_TRUE(torch::equal(cut->named_buffers()["count"].cpu(),
                                   whole->named_buffers()["count"].cpu()));
        });
      }
    }
  }
}

struct PartsImpl : nn::Module {
  PartsImpl()
      : embedding(register_module("embedding", nn::Embedding(13, 8))),
        attention(register_module("attention", nn::MultiheadAttention(8, 2))),
        softmax(register_module(
            "softmax",
            nn::AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(32, 20, {5, 9})))),
        transformer(
            register_module("transformer", nn::Transformer(nn::TransformerOptions(8, 2, 1, 1)))),
        head(register_module("head", nn::Linear(8, 13))) {
    head->weight = embedding->weight;
  }
  nn::Embedding embedding;
  nn::MultiheadAttention attention;
  nn::AdaptiveLogSoftmaxWithLoss softmax;
  nn::Transformer transformer;
  nn::Linear head;
};
TORCH_MODULE(Parts);

TEST(Construction, random_numbers_are_drawn_in_the_same_order) {
  if (test::on_sim()) GTEST_SKIP() << "seeds the generator of the process, which ranks share";
  // Ranks are threads with one generator, so there is one of them.
  for (const bool units : {false, true}) {
    spawn_ranks(1, [&](const Group& group) {
      const auto build = [] { return Parts(); };
      Parts whole = on_meta(build);
      torch::manual_seed(3);
      materialize(*whole, torch::kCPU);
      Parts cut = on_meta(build);
      torch::manual_seed(3);
      FullyShardedDataParallel<Parts> sharded(cut, options_of(group, units, false));
      const auto scope = sharded.summon_full_params();
      const auto expected = whole->named_parameters();
      for (const auto& item : cut->named_parameters())
        EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
    });
  }
}

TEST(Construction, initialization_of_what_was_cut_before_is_named) {
  spawn_ranks(2, [](const Group& group) {
    nn::Sequential module =
        on_meta([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)); });
    FsdpOptions options = options_over(group);
    options.param_init_fn = [&](nn::Module& one) {
      to_empty(one, test::device_of_rank(group->rank()), /*recurse=*/false);
      const torch::NoGradGuard no_grad;
      for (Tensor tensor : module->parameters()) {
        if (!tensor.is_meta()) tensor.fill_(1);
      }
    };
    EXPECT_THAT(error_of([&] { FullyShardedDataParallel<nn::Sequential>(module, options); }),
                AllOf(HasSubstr("'0.weight'"), HasSubstr("sharded already"),
                      HasSubstr("must write only their own module's parameters")));
  });
}

TEST(Construction, initialization_that_changes_a_parameter_is_named) {
  spawn_ranks(2, [](const Group& group) {
    nn::Linear module = on_meta([] { return nn::Linear(4, 4); });
    FsdpOptions options = options_over(group);
    options.param_init_fn = [&](nn::Module& one) {
      const c10::Device device = test::device_of_rank(group->rank());
      to_empty(one, device, /*recurse=*/false);
      const torch::NoGradGuard no_grad;
      one.named_parameters()["bias"].set_data(torch::zeros({5}, device));
    };
    EXPECT_THAT(error_of([&] { FullyShardedDataParallel<nn::Linear>(module, options); }),
                AllOf(HasSubstr("parameter 'bias' was Float [4]"), HasSubstr("Float [5]")));
  });
}

TEST(Construction, the_values_of_rank_0_come_in_few_collectives) {
  spawn_ranks(2, [](const Group& group) {
    const auto collectives = [&](bool sync) {
      nn::Sequential module;
      for (int i = 0; i < 50; ++i) module->push_back(nn::Linear(30, 30));
      FsdpOptions options = options_over(group);
      options.sync_module_states = sync;
      const auto before = internal::calls_of(*group).sequence;
      const FullyShardedDataParallel<nn::Sequential> sharded(module, options);
      return internal::calls_of(*group).sequence - before;
    };
    const auto without = collectives(false);
    // One for each half of the unit, whose 100 tensors went alone before.
    EXPECT_LE(collectives(true), without + 3);
  });
}

TEST(Construction, a_rank_that_cannot_initialize_holds_up_nobody) {
  for (const bool sync : {false, true}) {
    spawn_ranks(3, [&](const Group& group) {
      const auto build = [] { return nn::Sequential(nn::Linear(64, 64), nn::Linear(64, 64)); };
      FsdpOptions options = options_over(group);
      options.sync_module_states = sync;
      int calls = 0;
      options.param_init_fn = [&](nn::Module& one) {
        if (group->rank() == 1 && ++calls == 2) throw std::runtime_error("no values here");
        to_empty(one, test::device_of_rank(group->rank()), /*recurse=*/false);
      };
      EXPECT_THAT(
          error_of([&] { FullyShardedDataParallel<nn::Sequential>(on_meta(build), options); }),
          AllOf(HasSubstr("rank 1"), HasSubstr("no values here")));
      // The ranks can go on.
      options.param_init_fn = nullptr;
      FullyShardedDataParallel<nn::Sequential> sharded(on_meta(build), options);
      EXPECT_EQ(sharded.parameters().size(), 4U);
    });
  }
}

}  // namespace
}  // namespace fsdp
