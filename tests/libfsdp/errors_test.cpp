// SPDX-License-Identifier: Apache-2.0
// Every wrong use of a sharded module has an error that says what to do.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/comm_hooks.h"
#include "libfsdp/internal/engine/engine.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace test;  // the modules
using Sharded = FullyShardedDataParallel<Gpt>;

// Returns the error of sharding a GPT with these options, in a world of one.
std::string refused(const std::function<void(Gpt&, FsdpOptions&)>& spoil) {
  std::string message;
  spawn_ranks(1, [&](const Group& group) {
    Gpt module = filled_gpt();
    FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
    spoil(module, options);
    message = error_of([&] { Sharded sharded(module, options); });
  });
  return message;
}

TEST(Errors, a_group_is_needed) {
  EXPECT_THAT(refused([](Gpt&, FsdpOptions& options) { options.process_group = nullptr; }),
              HasSubstr("process_group is not set"));
}

TEST(Errors, only_one_kind_of_ignored_argument_is_taken) {
  EXPECT_THAT(refused([](Gpt& module, FsdpOptions& options) {
                options.ignored_modules = {module->ln.ptr()};
                options.ignored_states = {module->head->weight};
              }),
              HasSubstr("ignored_modules and ignored_states are both given"));
}

TEST(Errors, ignored_states_must_be_parameters_of_the_module) {
  EXPECT_THAT(
      refused([](Gpt&, FsdpOptions& options) { options.ignored_states = {torch::ones({2})}; }),
      HasSubstr("not a parameter of the module"));
}

TEST(Errors, parameters_shared_by_two_units_name_both) {
  EXPECT_THAT(refused([](Gpt& module, FsdpOptions&) {
                const Tensor& weight = module->blocks->ptr<BlockImpl>(0)->up->weight;
                module->blocks->ptr<BlockImpl>(1)->register_parameter("tied", weight);
              }),
              AllOf(HasSubstr("blocks.0.up.weight"), HasSubstr("unit 'blocks.0'"),
                    HasSubstr("blocks.1.tied"), HasSubstr("unit 'blocks.1'")));
}

TEST(Errors, flat_parameters_refuse_frozen_ones_beside_others) {
  EXPECT_THAT(refused([](Gpt& module, FsdpOptions& options) {
                options.use_orig_params = false;
                module->blocks->ptr<BlockImpl>(1)->up->weight.set_requires_grad(false);
              }),
              AllOf(HasSubstr("unit 'blocks.1'"), HasSubstr("blocks.1.up.weight"),
                    HasSubstr("use_orig_params")));
}

TEST(Errors, mixed_precision_takes_floating_dtypes) {
  EXPECT_THAT(refused([](Gpt&, FsdpOptions& options) {
                options.mixed_precision.param_dtype = torch::kLong;
              }),
              HasSubstr("not a floating-point dtype"));
}

TEST(Errors, hybrid_strategies_need_to_know_the_nodes) {
  EXPECT_THAT(refused([](Gpt&, FsdpOptions& options) {
                options.sharding_strategy = ShardingStrategy::kHybridShard;
              }),
              HasSubstr("set node_size"));
  EXPECT_THAT(
      refused([](Gpt&, FsdpOptions& options) { options.replicate_group = options.process_group; }),
      HasSubstr("not a hybrid one"));
}

TEST(Errors, a_meta_module_that_nothing_initializes_is_named) {
  EXPECT_THAT(refused([](Gpt& module, FsdpOptions&) {
                module->register_parameter("bare", torch::empty({2}, torch::kMeta));
              }),
              HasSubstr("param_init_fn"));
}

TEST(Errors, integer_parameters_cannot_be_sharded) {
  EXPECT_THAT(refused([](Gpt& module, FsdpOptions&) {
                module->register_parameter("count", torch::ones({2}, torch::kLong), false);
              }),
              AllOf(HasSubstr("'count'"), HasSubstr("ignored_states")));
}

TEST(Errors, a_module_on_several_devices_names_two_parameters) {
  if (!on_sim()) GTEST_SKIP() << "needs two devices";
  EXPECT_THAT(refused([](Gpt& module, FsdpOptions&) {
                module->emb->to(device_of_rank(0));
                module->head->to(device_of_rank(1));
              }),
              AllOf(HasSubstr("'emb.weight'"), HasSubstr("'head.weight'"),
                    HasSubstr("computes on one device")));
}

// Two ranks, a GPT sharded over both.
void on_two_ranks(const std::function<void(Sharded&, Gpt&, int rank)>& body) {
  spawn_ranks(2, [&](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, options_over(group, module_wrap_policy<BlockImpl>()));
    body(sharded, module, group->rank());
    // The next step works in spite of it.
    gpt_loss(sharded, group->rank(), 1).backward();
  });
}

TEST(Errors, parameters_are_not_to_be_used_outside_of_forward) {
  on_two_ranks([](Sharded&, Gpt& module, int) {
    const auto expected =
        AllOf(HasSubstr("outside of forward and backward"), HasSubstr("summon_full_params"));
    EXPECT_THAT(error_of([&] { module->head->weight.norm(); }), expected);
    EXPECT_THAT(error_of([&] { (void)module->head->weight.detach(); }), expected);
    EXPECT_THAT(error_of([&] {
                  std::ostringstream text;
                  text << module->head->weight;
                }),
                expected);
    EXPECT_THAT(error_of([&] { module->head(torch::ones({2, 24})); }), expected);
    EXPECT_THAT(error_of([&] {
                  module->blocks->ptr<BlockImpl>(0)->forward(torch::ones({1, 2, 24}));
                }),
                AllOf(expected, HasSubstr("blocks.0")));
    EXPECT_ANY_THROW((void)module->head->weight.data_ptr<float>());
    EXPECT_ANY_THROW((void)module->clone());
  });
}

TEST(Errors, a_wrapped_module_cannot_be_moved_or_cast) {
  on_two_ranks([](Sharded&, Gpt& module, int) {
    EXPECT_THAT(error_of([&] { module->to(torch::kDouble); }), HasSubstr("outside of forward"));
  });
}

TEST(Errors, a_replaced_parameter_is_found_at_the_next_forward) {
  spawn_ranks(1, [](const Group& group) {
    // Elsewhere it throws at once.
    Gpt module = filled_gpt();
    FsdpOptions options = options_over(group);
    options.sharding_strategy = ShardingStrategy::kNoShard;
    Sharded sharded(module, options);
    module->to(torch::kDouble);
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, 0, 0); }),
                AllOf(HasSubstr("'emb.weight'"), HasSubstr("moved, cast or loaded")));
  });
}

TEST(Errors, saving_a_wrapped_module_fails_instead_of_writing_nothing) {
  on_two_ranks([](Sharded&, Gpt& module, int) {
    std::ostringstream file;
    EXPECT_THROW(torch::save(module, file), c10::Error);
  });
}

TEST(Errors, summoning_has_its_documented_errors) {
  on_two_ranks([](Sharded& sharded, Gpt&, int rank) {
    const auto summon = [&](const SummonOptions& options) {
      return error_of([&] { sharded.summon_full_params(options).close(); });
    };
    EXPECT_THAT(summon({.writeback = true, .rank0_only = true}), HasSubstr("rank0_only"));
    EXPECT_THAT(summon({.offload_to_cpu = true, .with_grads = true}), HasSubstr("offload_to_cpu"));
    const FullParams scope = sharded.summon_full_params();
    EXPECT_THAT(summon({}), HasSubstr("inside summon_full_params"));
    EXPECT_THAT(error_of([&] { gpt_loss(sharded, rank, 0); }),
                HasSubstr("forward inside summon_full_params"));
  });
  spawn_ranks(1, [](const Group& group) {
    FsdpOptions options = options_over(group);
    options.use_orig_params = false;
    Sharded sharded(filled_gpt(), options);
    EXPECT_THAT(error_of([&] { sharded.summon_full_params({.with_grads = true}).close(); }),
                HasSubstr("needs use_orig_params"));
  });
}

TEST(Errors, apply_summons_by_itself) {
  on_two_ranks([](Sharded& sharded, Gpt&, int) {
    const FullParams scope = sharded.summon_full_params();
    EXPECT_THAT(error_of([&] { sharded.apply([](torch::nn::Module&) {}); }),
                HasSubstr("inside summon_full_params"));
  });
}

TEST(Errors, an_optimizer_made_before_wrapping_throws_and_steps_on_nothing) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    torch::optim::SGD early(module->parameters(), 0.1);
    Sharded sharded(module, options_over(group));
    gpt_loss(sharded, group->rank(), 0).backward();
    const Tensor before = sharded.parameters().front().detach().clone();
    EXPECT_THAT(error_of([&] { early.step(); }), HasSubstr("sharded.parameters()"));
    EXPECT_TRUE(torch::equal(sharded.parameters().front(), before));
    module->zero_grad();
    module->head->weight.mutable_grad() = torch::ones({53, 24});
    EXPECT_THAT(error_of([&] { early.step(); }), HasSubstr("outside of forward"));
    module->head->weight.mutable_grad().reset();
  });
}

TEST(Errors, parameters_cannot_be_changed_between_forward_and_backward) {
  on_two_ranks([](Sharded& sharded, Gpt& module, int rank) {
    const Tensor loss = gpt_loss(sharded, rank, 0);
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(error_of([&] { module->head->weight.mul_(2); }), HasSubstr("outside of forward"));
  });
}

// Runs the given function in its forward.
struct CallbackImpl : nn::Module {
  CallbackImpl() : a(register_module("a", nn::Linear(3, 3))) {}
  Tensor forward(const std::function<Tensor(Tensor)>& f, const Tensor& x) { return a(f(x)); }
  nn::Linear a;
};
TORCH_MODULE(Callback);

TEST(Errors, nothing_is_summoned_or_begun_inside_forward) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Callback> sharded(Callback(), options_over(group));
    const auto inside = [&](const std::function<void()>& body) {
      return error_of([&] {
        sharded.forward(std::function<Tensor(Tensor)>([&](Tensor x) {
                          body();
                          return x;
                        }),
                        torch::ones({2, 3}));
      });
    };
    EXPECT_THAT(inside([&] { sharded.summon_full_params().close(); }),
                HasSubstr("inside forward or backward"));
    EXPECT_THAT(inside([&] {
                  sharded.forward(std::function<Tensor(Tensor)>([](Tensor x) { return x; }),
                                  torch::ones({2, 3}));
                }),
                HasSubstr("inside its own forward"));
  });
}

TEST(Errors, one_communication_hook_and_none_for_hybrid_strategies) {
  spawn_ranks(4, [](const Group& group) {
    const CommHook hook = [](const Group&, Tensor&, Tensor&) {};
    FsdpOptions options = options_over(group);
    Sharded sharded(filled_gpt(), options);
    sharded.register_comm_hook(hook);
    EXPECT_THAT(error_of([&] { sharded.register_comm_hook(hook); }),
                HasSubstr("registered already"));
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.node_size = 2;
    Sharded hybrid(filled_gpt(), options);
    EXPECT_THAT(error_of([&] { hybrid.register_comm_hook(hook); }), HasSubstr("hybrid"));
  });
}

TEST(Errors, sparse_gradients_are_refused_by_name) {
  if (on_sim()) GTEST_SKIP() << "sparse tensors are not simulated";
  spawn_ranks(2, [](const Group& group) {
    nn::Embedding module(nn::EmbeddingOptions(10, 3).sparse(true));
    FullyShardedDataParallel<nn::Embedding> sharded(module, options_over(group));
    const Tensor loss = sharded.forward(random_tokens({4}, 10, 1)).sum();
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                AllOf(HasSubstr("'weight'"), HasSubstr("sparse")));
  });
}

// ---- ranks that differ

TEST(Errors, ranks_with_other_modules_are_named_before_anything_is_sent) {
  spawn_ranks(3, [](const Group& group) {
    const int layers = group->rank() == 2 ? 3 : 2;
    EXPECT_THAT(error_of([&] {
                  Sharded sharded(filled_gpt(layers),
                                  options_over(group, module_wrap_policy<BlockImpl>()));
                }),
                AllOf(HasSubstr("rank 2"), HasSubstr("blocks.2")));
  });
}

TEST(Errors, ranks_with_other_shapes_dtypes_or_options_are_named) {
  const std::vector<std::pair<std::function<void(Gpt&, FsdpOptions&)>, std::string>> cases{
      {[](Gpt& module, FsdpOptions&) { module = Gpt(2, false, 32); }, "emb.weight"},
      {[](Gpt& module, FsdpOptions&) { module->to(torch::kDouble); }, "Double"},
      {[](Gpt&, FsdpOptions& options) { options.bucket_bytes = 7; }, "bucket bytes 7"},
      {[](Gpt&, FsdpOptions& options) {
         options.sharding_strategy = ShardingStrategy::kShardGradOp;
       },
       "strategy"}};
  for (const auto& [spoil, expected] : cases) {
    spawn_ranks(2, [&](const Group& group) {
      Gpt module = filled_gpt();
      FsdpOptions options = options_over(group);
      if (group->rank() == 1) spoil(module, options);
      EXPECT_THAT(error_of([&] { Sharded sharded(module, options); }),
                  AllOf(HasSubstr("rank 1"), HasSubstr(expected)));
    });
  }
}

TEST(Errors, a_rank_that_cannot_build_its_units_ends_all) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    if (group->rank() == 1)
      module->register_parameter("count", torch::ones({2}, torch::kLong), false);
    EXPECT_THAT(error_of([&] { Sharded sharded(module, options_over(group)); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("'count'")));
  });
}

// Uses its layers in the given order.
struct OrderedImpl : nn::Module {
  OrderedImpl() {
    for (const char* name : {"a", "b", "c"})
      layers.push_back(register_module(name, nn::Linear(4, 4)));
  }
  Tensor forward(Tensor x, const std::vector<int>& order) {
    for (const int i : order) x = torch::tanh(layers[static_cast<std::size_t>(i)](x));
    return x;
  }
  std::vector<nn::Linear> layers;
};
TORCH_MODULE(Ordered);

TEST(Errors, ranks_out_of_step_are_named_instead_of_training_on_wrong_weights) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Ordered> sharded(Ordered(), options_over(group, always_wrap_policy()));
    const std::vector<int> order =
        group->rank() == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{1, 0, 2};
    const std::string message = error_of([&] { sharded.forward(torch::ones({2, 4}), order); });
    EXPECT_THAT(message, AllOf(HasSubstr("rank " + std::to_string(1 - group->rank())),
                               HasSubstr("all-gather of a"), HasSubstr("all-gather of b"),
                               HasSubstr("one order")));
  });
}

TEST(Errors, an_exception_in_one_ranks_forward_reaches_the_others) {
  spawn_ranks(3, [](const Group& group) {
    FullyShardedDataParallel<Callback> sharded(Callback(), options_over(group));
    const std::string message = error_of([&] {
      sharded.forward(std::function<Tensor(Tensor)>([&](Tensor x) {
                        TORCH_CHECK(group->rank() != 1, "the data of rank one is broken");
                        return x;
                      }),
                      torch::ones({2, 3}));
    });
    EXPECT_THAT(message, HasSubstr("the data of rank one is broken"));
    EXPECT_TRUE(group->rank() == 1 || message.find("rank 1") != std::string::npos) << message;
  });
}

TEST(Errors, a_forward_that_throws_everywhere_leaves_the_next_step_right) {
  spawn_ranks(2, [](const Group& group) {
    Ordered module;
    fill_parameters(*module);
    FullyShardedDataParallel<Ordered> sharded(module, options_over(group, always_wrap_policy()));
    const auto output = [&] {
      return sharded.forward(torch::ones({2, 4}), std::vector<int>{0, 1});
    };
    const Tensor before = output();
    EXPECT_ANY_THROW(sharded.forward(torch::ones({2, 5}), std::vector<int>{0, 1}));
    EXPECT_TRUE(torch::equal(before, output()));
  });
}

TEST(Errors, full_parameters_end_before_their_module) {
  spawn_ranks(1, [](const Group& group) {
    auto sharded = std::make_unique<Sharded>(filled_gpt(), options_over(group));
    FullParams scope = sharded->summon_full_params();
    sharded.reset();
    EXPECT_THAT(error_of([&] { scope.close(); }), HasSubstr("outlive their sharded module"));
  });
}

TEST(Errors, a_communication_hook_comes_before_the_first_forward) {
  on_two_ranks([](Sharded& sharded, Gpt&, int rank) {
    gpt_loss(sharded, rank, 0).backward();
    EXPECT_THAT(error_of([&] { sharded.register_comm_hook(reduce_scatter_hook()); }),
                HasSubstr("before the first forward"));
  });
  for (const int node_size : {1, 2}) {
    spawn_ranks(2, [&](const Group& group) {
      FsdpOptions options = options_over(group);
      options.sharding_strategy = ShardingStrategy::kHybridShard;
      options.node_size = node_size;
      Sharded sharded(filled_gpt(), options);
      EXPECT_THAT(error_of([&] { sharded.register_comm_hook(allreduce_hook()); }),
                  HasSubstr("hybrid sharding strategy"));
    });
  }
}

}  // namespace
}  // namespace fsdp
