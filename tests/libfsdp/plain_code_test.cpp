// SPDX-License-Identifier: Apache-2.0
// Code that is right for a plain module works the same here, or throws an error that says what to
// do: it never silently trains nothing, or something else.  Gradients and optimizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/optim/adamw.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace test;  // the modules
using Sharded = FullyShardedDataParallel<Gpt>;

// Runs every rank of worlds of 1, 2 and 3, with a tensor for each parameter and with flat ones.
void on_every_world(
    const std::function<void(Sharded&, Gpt&, const Group&, const FsdpOptions&)>& body,
    ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  for (const bool orig : {true, false}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE("world size " + std::to_string(size) + (orig ? "" : ", flat"));
      spawn_ranks(size, [&](const Group& group) {
        Gpt module = filled_gpt();
        FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
        options.use_orig_params = orig;
        options.sharding_strategy = strategy;
        Sharded sharded(module, options);
        body(sharded, module, group, options);
      });
    }
  }
}

// Returns a plain module's gradients after these steps, with all ranks' data.
Gpt plain(const Group& group, const std::vector<int>& steps) {
  Gpt module = filled_gpt();
  for (const int step : steps) {
    for (int rank = 0; rank < group->size(); ++rank) {
      const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
      (next_token_loss(module->forward(tokens), tokens) / group->size()).backward();
    }
  }
  return module;
}

void expect_gradients_of(Sharded& sharded, const Group& group, const std::vector<int>& steps) {
  Gpt expected = plain(group, steps);
  Tensor sum = torch::zeros({});
  for (const auto& parameter : expected->parameters()) sum = sum + parameter.grad().square().sum();
  EXPECT_NEAR(sharded.clip_grad_norm_(1e9).item<double>(), sum.sqrt().item<double>(), 2e-5);
  if (!sharded.options().use_orig_params) return;
  const FullParams scope = sharded.summon_full_params({.writeback = false, .with_grads = true});
  for (const auto& item : expected->named_parameters()) {
    const Tensor found = sharded.module()->named_parameters()[item.key()].grad();
    ASSERT_TRUE(found.defined()) << item.key();
    EXPECT_LE(distance(found, item.value().grad()), 2e-6) << item.key();
  }
}

bool any_gradient(const Sharded& sharded) {
  for (const auto& parameter : sharded.parameters()) {
    if (parameter.grad().defined()) return true;
  }
  return false;
}

const auto kNotHere = AllOf(HasSubstr("at the module's own parameter"),
                            HasSubstr("sharded.parameters()"), HasSubstr("parameter '"));
const auto kNotReduced =
    AllOf(HasSubstr("not reduced yet"), HasSubstr("NoSync"), HasSubstr("parameter '"));

// ---- zero_grad

TEST(PlainCode, zero_grad_of_the_module_drops_the_gradients) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    gpt_loss(sharded, group->rank(), 0).backward();
    module->zero_grad();
    EXPECT_FALSE(any_gradient(sharded));
    gpt_loss(sharded, group->rank(), 1).backward();
    expect_gradients_of(sharded, group, {1});
  });
}

TEST(PlainCode, zero_grad_of_the_module_between_forward_and_backward_counts) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    gpt_loss(sharded, group->rank(), 0).backward();
    const Tensor loss = gpt_loss(sharded, group->rank(), 1);
    module->zero_grad();
    loss.backward();
    expect_gradients_of(sharded, group, {1});
  });
}

TEST(PlainCode, zero_grad_may_make_zeros) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    gpt_loss(sharded, group->rank(), 0).backward();
    module->zero_grad(/*set_to_none=*/false);
    for (const auto& parameter : sharded.parameters()) {
      ASSERT_TRUE(parameter.grad().defined());
      EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0);
    }
    gpt_loss(sharded, group->rank(), 1).backward();
    expect_gradients_of(sharded, group, {1});
  });
}

TEST(PlainCode, zero_grad_of_one_layer_leaves_the_others) {
  spawn_ranks(2, [](const Group& group) {
    for (const bool orig : {true, false}) {
      Gpt module = filled_gpt();
      FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
      options.use_orig_params = orig;
      Sharded sharded(module, options);
      gpt_loss(sharded, group->rank(), 0).backward();
      module->head->zero_grad();
      Gpt expected = plain(group, {0});
      expected->head->zero_grad();
      const double norm = nn::utils::clip_grad_norm_(expected->parameters(), 1e9);
      EXPECT_NEAR(sharded.clip_grad_norm_(1e9).item<double>(), norm, 2e-5) << orig;
    }
  });
}

TEST(PlainCode, the_wrapper_has_zero_grad_train_and_eval) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    {
      const NoSync silent(sharded);
      gpt_loss(sharded, group->rank(), 0).backward();
    }
    sharded.zero_grad();
    gpt_loss(sharded, group->rank(), 1).backward();
    expect_gradients_of(sharded, group, {1});
    sharded.zero_grad();
    EXPECT_FALSE(any_gradient(sharded));
    sharded.eval();
    EXPECT_FALSE(module->is_training() || module->ln->is_training() || sharded.is_training());
    sharded.train();
    EXPECT_TRUE(module->is_training() && module->ln->is_training() && sharded.is_training());
  });
}

// ---- optimizers and norms of the module's own parameters

TEST(PlainCode, an_optimizer_over_the_modules_parameters_throws_instead_of_training_nothing) {
  for (const int size : {1, 2, 3}) {
    for (const bool early : {true, false}) {
      for (const bool orig : {true, false}) {
        spawn_ranks(size, [&](const Group& group) {
          Gpt module = filled_gpt();
          std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
          const auto make = [&] {
            const auto parameters = module->parameters();
            optimizers.push_back(std::make_unique<torch::optim::SGD>(parameters, 0.1));
            optimizers.push_back(std::make_unique<torch::optim::Adam>(parameters, 0.1));
            optimizers.push_back(std::make_unique<torch::optim::AdamW>(parameters, 0.1));
            optimizers.push_back(std::make_unique<torch::optim::RMSprop>(parameters, 0.1));
            optimizers.push_back(
                std::make_unique<fsdp::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.1)));
          };
          if (early) make();
          FsdpOptions options = options_over(group, module_wrap_policy<BlockImpl>());
          options.use_orig_params = orig;
          Sharded sharded(module, options);
          if (!early) make();
          for (const auto& optimizer : optimizers) {
            gpt_loss(sharded, group->rank(), 0).backward();
            EXPECT_THAT(error_of([&] { optimizer->step(); }),
                        AnyOf(kNotHere, HasSubstr("outside of forward")));
            // It clears them all the same, and the next step of the right optimizer is correct.
            optimizer->zero_grad();
            EXPECT_FALSE(any_gradient(sharded));
          }
          gpt_loss(sharded, group->rank(), 1).backward();
          expect_gradients_of(sharded, group, {1});
        });
      }
    }
  }
}

TEST(PlainCode, norms_over_the_modules_parameters_throw_instead_of_being_zero) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    gpt_loss(sharded, group->rank(), 0).backward();
    for (const double p : {2.0, 0.0, std::numeric_limits<double>::infinity()}) {
      EXPECT_THAT(error_of([&] { (void)nn::utils::clip_grad_norm_(module->parameters(), 1.0, p); }),
                  kNotHere);
    }
    EXPECT_THAT(error_of([&] { nn::utils::clip_grad_value_(module->parameters(), 1.0); }),
                kNotHere);
    EXPECT_THAT(error_of([&] { (void)module->head->weight.grad().norm(); }), kNotHere);
    expect_gradients_of(sharded, group, {0});
  });
}

TEST(PlainCode,
     where_nothing_is_sharded_the_modules_parameters_can_be_read_at_any_number_of_ranks) {
  on_every_world(
      [](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
        EXPECT_TRUE(torch::equal(module->head->weight, filled_gpt()->head->weight));
        gpt_loss(sharded, group->rank(), 0).backward();
        torch::optim::SGD optimizer(module->parameters(), 0.1);
        EXPECT_THAT(error_of([&] { optimizer.step(); }), kNotHere);
        optimizer.zero_grad();
        EXPECT_FALSE(any_gradient(sharded));
      },
      ShardingStrategy::kNoShard);
}

// ---- NoSync

TEST(PlainCode, zero_grad_drops_what_no_sync_kept) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const auto keep = [&](int step) {
      const NoSync silent(sharded);
      gpt_loss(sharded, group->rank(), step).backward();
    };
    keep(0);
    optimizer.zero_grad();
    gpt_loss(sharded, group->rank(), 1).backward();
    expect_gradients_of(sharded, group, {1});
    // Beside reduced ones.
    keep(2);
    optimizer.zero_grad();
    keep(3);
    gpt_loss(sharded, group->rank(), 4).backward();
    expect_gradients_of(sharded, group, {3, 4});
    // Through the module, and as zeros.
    keep(5);
    module->zero_grad();
    gpt_loss(sharded, group->rank(), 6).backward();
    expect_gradients_of(sharded, group, {6});
    keep(7);
    optimizer.zero_grad(/*set_to_none=*/false);
    gpt_loss(sharded, group->rank(), 8).backward();
    expect_gradients_of(sharded, group, {8});
  });
}

TEST(PlainCode, kept_gradients_are_added_to_reduced_ones) {
  on_every_world([](Sharded& sharded, Gpt&, const Group& group, const FsdpOptions&) {
    gpt_loss(sharded, group->rank(), 0).backward();
    {
      const NoSync silent(sharded);
      gpt_loss(sharded, group->rank(), 1).backward();
      gpt_loss(sharded, group->rank(), 2).backward();
    }
    gpt_loss(sharded, group->rank(), 3).backward();
    expect_gradients_of(sharded, group, {0, 1, 2, 3});
  });
}

TEST(PlainCode, a_scope_of_no_sync_may_hold_another) {
  on_every_world([](Sharded& sharded, Gpt&, const Group& group, const FsdpOptions&) {
    {
      const NoSync outer(sharded);
      {
        const NoSync inner(sharded);
        gpt_loss(sharded, group->rank(), 0).backward();
      }
      EXPECT_FALSE(sharded.requires_gradient_sync());
      const auto reductions = engine_of(sharded).stats().reductions;
      gpt_loss(sharded, group->rank(), 1).backward();
      EXPECT_EQ(engine_of(sharded).stats().reductions, reductions);
    }
    EXPECT_TRUE(sharded.requires_gradient_sync());
    gpt_loss(sharded, group->rank(), 2).backward();
    expect_gradients_of(sharded, group, {0, 1, 2});
  });
}

TEST(PlainCode, gradients_that_are_not_reduced_are_not_stepped_or_clipped) {
  on_every_world([](Sharded& sharded, Gpt&, const Group& group, const FsdpOptions& options) {
    torch::optim::SGD sgd(sharded.parameters(), 0.1);
    fsdp::optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.1));
    {
      const NoSync silent(sharded);
      gpt_loss(sharded, group->rank(), 0).backward();
    }
    const Tensor before = sharded.parameters().front().detach().clone();
    EXPECT_THAT(error_of([&] { sgd.step(); }), kNotReduced);
    EXPECT_THAT(error_of([&] { adamw.step(); }), kNotReduced);
    EXPECT_THAT(error_of([&] { sharded.clip_grad_norm_(1.0); }), kNotReduced);
    if (options.use_orig_params) {
      EXPECT_THAT(error_of([&] {
                    sharded.summon_full_params({.writeback = false, .with_grads = true}).close();
                  }),
                  kNotReduced);
    }
    EXPECT_TRUE(torch::equal(sharded.parameters().front(), before));
    gpt_loss(sharded, group->rank(), 1).backward();
    expect_gradients_of(sharded, group, {0, 1});
  });
}

// ---- backward and steps

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    TORCH_CHECK(false, "thrown in backward");
  }
};

TEST(PlainCode, the_first_backward_after_one_that_threw_is_right) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(group->rank()));
    const Tensor logits = sharded.forward(tokens);
    // Throws before, and beside, the part that reaches the parameters.
    const Tensor bad = ThrowsInBackward::apply(next_token_loss(logits, tokens));
    const Tensor good = gpt_loss(sharded, group->rank(), 1);
    EXPECT_THAT(error_of([&] { bad.backward(); }), HasSubstr("thrown in backward"));
    module->zero_grad();
    good.backward();
    expect_gradients_of(sharded, group, {1});
  });
}

// The first layer's backward throws: all others have made their gradients.
struct LateImpl : nn::Module {
  LateImpl() : gpt(register_module("gpt", filled_gpt())) {}
  Tensor forward(const Tensor& tokens, bool bad) {
    Tensor x = gpt->emb(tokens);
    x = gpt->blocks->ptr<BlockImpl>(0)->forward(x);
    if (bad) x = ThrowsInBackward::apply(x);
    x = gpt->blocks->ptr<BlockImpl>(1)->forward(x);
    return next_token_loss(gpt->head(gpt->ln(x)), tokens);
  }
  Gpt gpt;
};
TORCH_MODULE(Late);

TEST(PlainCode, kept_gradients_survive_a_backward_that_threw) {
  for (const int size : {1, 2, 3}) {
    spawn_ranks(size, [](const Group& group) {
      Late module;
      FullyShardedDataParallel<Late> sharded(module,
                                             options_over(group, module_wrap_policy<BlockImpl>()));
      const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(group->rank()));
      const auto gradient_norm = [&](bool fail) {
        {
          const NoSync silent(sharded);
          sharded.forward(tokens, false).backward();
        }
        if (fail) {
          const NoSync silent(sharded);
          Tensor loss = sharded.forward(tokens, true);
          EXPECT_ANY_THROW(loss.backward());
        }
        sharded.forward(tokens, false).backward();
        const double norm = sharded.clip_grad_norm_(1e9).item<double>();
        sharded.zero_grad();
        return norm;
      };
      const double without = gradient_norm(false);
      // Gradients that the failed backward added to the last layers stay, as without sharding.
      EXPECT_GT(gradient_norm(true), without);
      EXPECT_NEAR(gradient_norm(false), without, 1e-6);
    });
  }
}

TEST(PlainCode, backward_after_a_step_throws_instead_of_mixing_weights) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    on_every_world(
        [](Sharded& sharded, Gpt&, const Group& group, const FsdpOptions&) {
          torch::optim::SGD sgd(sharded.parameters(), 0.1);
          fsdp::optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.01));
          const auto expected =
              AllOf(HasSubstr("was changed"), HasSubstr("call backward before the step"),
                    HasSubstr("parameter '"));
          for (torch::optim::Optimizer* optimizer :
               std::vector<torch::optim::Optimizer*>{&sgd, &adamw}) {
            const Tensor late = gpt_loss(sharded, group->rank(), 0);
            gpt_loss(sharded, group->rank(), 1).backward();
            if (optimizer == &sgd) sgd.step();
            if (optimizer == &adamw) adamw.step();
            EXPECT_THAT(error_of([&] { late.backward(); }), expected);
            sharded.zero_grad();
          }
          // A new forward is right again, also over a retained graph.
          const Tensor loss = gpt_loss(sharded, group->rank(), 2);
          loss.backward({}, /*retain_graph=*/true);
          loss.backward();
        },
        strategy);
  }
}

TEST(PlainCode, backward_after_values_were_loaded_throws) {
  on_every_world([](Sharded& sharded, Gpt& module, const Group& group, const FsdpOptions&) {
    const auto expected = HasSubstr("was changed");
    const StateDict state = sharded.state_dict();
    Tensor loss = gpt_loss(sharded, group->rank(), 0);
    sharded.load_state_dict(state);
    EXPECT_THAT(error_of([&] { loss.backward(); }), expected);
    loss = gpt_loss(sharded, group->rank(), 0);
    {
      const FullParams scope = sharded.summon_full_params();
      const torch::NoGradGuard no_grad;
      module->head->weight.mul_(2);
    }
    EXPECT_THAT(error_of([&] { loss.backward(); }), expected);
    // Reading them is not a change.
    loss = gpt_loss(sharded, group->rank(), 0);
    (void)sharded.state_dict();
    { const FullParams scope = sharded.summon_full_params({.writeback = false}); }
    sharded.zero_grad();
    loss.backward();
  });
}

}  // namespace
}  // namespace fsdp
