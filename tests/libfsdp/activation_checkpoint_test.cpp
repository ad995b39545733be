// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/activation_checkpoint.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/libfsdp/error_of.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

struct BlockImpl : nn::Module {
  explicit BlockImpl(double dropout = 0.0)
      : in(register_module("in", nn::Linear(8, 16))),
        out(register_module("out", nn::Linear(16, 8))),
        drop(register_module("drop", nn::Dropout(dropout))) {}
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return x + drop(out(drop(torch::gelu(in(x)))));
  }
  nn::Linear in;
  nn::Linear out;
  nn::Dropout drop;
  int calls = 0;
};
TORCH_MODULE(Block);

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> grads;  // of the parameters, then of the inputs
};

// Runs one forward and backward of `loss` from one seed.
template <typename Loss>
Outcome run(nn::Module& module, std::vector<at::Tensor> inputs, const Loss& loss) {
  module.zero_grad();
  for (auto& input : inputs) input.mutable_grad() = at::Tensor();
  torch::manual_seed(11);
  Outcome result;
  result.loss = loss();
  torch::rand({3});  // advances the generator between forward and backward
  result.loss.backward();
  for (const auto& parameter : module.parameters()) result.grads.push_back(parameter.grad());
  for (const auto& input : inputs) result.grads.push_back(input.grad());
  return result;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  EXPECT_TRUE(torch::equal(actual.loss, expected.loss));
  ASSERT_EQ(actual.grads.size(), expected.grads.size());
  for (std::size_t i = 0; i < actual.grads.size(); ++i) {
    ASSERT_EQ(actual.grads[i].defined(), expected.grads[i].defined()) << i;
    if (!actual.grads[i].defined()) continue;
    EXPECT_TRUE(torch::equal(actual.grads[i], expected.grads[i])) << i;
  }
}

TEST(Checkpoint, gradients_are_bitwise_those_without_it_dropout_included) {
  for (const double dropout : {0.0, 0.4}) {
    for (const bool input_requires_grad : {true, false}) {
      torch::manual_seed(1);
      Block block(dropout);
      const auto x = torch::randn({5, 8}).set_requires_grad(input_requires_grad);
      const auto expected = run(*block, {x}, [&] { return block(x).square().sum(); });
      block->calls = 0;
      const auto actual = run(*block, {x}, [&] {
        auto y = checkpoint([block](const at::Tensor& h) mutable { return block(h); }, x);
        EXPECT_TRUE(y.requires_grad());
        return y.square().sum();
      });
      expect_same(actual, expected);
      EXPECT_EQ(block->calls, 2);
    }
  }
}

TEST(Checkpoint, the_generator_goes_on_as_if_nothing_had_been_recomputed) {
  torch::manual_seed(1);
  Block block(0.5);
  const auto x = torch::randn({5, 8});
  torch::manual_seed(3);
  block(x).sum().backward();
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  checkpoint([block](const at::Tensor& h) mutable { return block(h); }, x).sum().backward();
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Checkpoint, what_is_computed_on_the_way_is_not_kept) {
  c10::weak_intrusive_ptr<c10::TensorImpl> middle(c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(), caffe2::TypeMeta::Make<float>(), std::nullopt));
  const auto function = [&middle](const at::Tensor& x) {
    const auto h = x.exp();
    middle = c10::weak_intrusive_ptr<c10::TensorImpl>(h.getIntrusivePtr());
    return h.square();  // needs h in backward
  };
  const auto x = torch::ones({2}, torch::requires_grad());
  const auto plain = function(x);
  EXPECT_FALSE(middle.expired());
  const auto recomputed = checkpoint(function, x);
  EXPECT_TRUE(middle.expired());
  recomputed.sum().backward();
  EXPECT_TRUE(middle.expired());
}

TEST(Checkpoint, many_arguments_and_results_of_every_shape) {
  torch::manual_seed(1);
  nn::Linear linear(4, 4);
  const auto a = torch::randn({2, 4}, torch::requires_grad());
  const auto b = torch::randn({2, 4});
  const auto c = torch::randn({2, 4}, torch::requires_grad());
  using Result = std::tuple<at::Tensor, std::vector<at::Tensor>, std::map<int, at::Tensor>, int>;
  auto function =
      [linear](const at::Tensor& first, const at::Tensor& undefined,
               const std::pair<at::Tensor, int>& second, const std::optional<at::Tensor>& third,
               const std::optional<at::Tensor>& none, std::vector<bool> flags) mutable -> Result {
    EXPECT_FALSE(undefined.defined());
    EXPECT_FALSE(none.has_value());
    EXPECT_EQ(flags, std::vector<bool>{true});
    auto h = linear(first * second.first) + third.value();
    return {h.sin(), {h.cos(), at::Tensor(), h.argmax(1)}, {{7, first.detach()}}, second.second};
  };
  const auto loss_of = [](const Result& result) {
    EXPECT_FALSE(std::get<1>(result)[1].defined());
    EXPECT_EQ(std::get<1>(result)[2].scalar_type(), torch::kLong);
    EXPECT_FALSE(std::get<1>(result)[2].requires_grad());
    EXPECT_EQ(std::get<3>(result), 5);
    return (std::get<0>(result) + 2 * std::get<1>(result)[0] + std::get<2>(result).at(7)).sum();
  };
  const std::pair<at::Tensor, int> pair(b, 5);
  const std::optional<at::Tensor> some(c);
  const std::optional<at::Tensor> none;
  const std::vector<bool> flags{true};
  const auto expected = run(
      *linear, {a, c}, [&] { return loss_of(function(a, at::Tensor(), pair, some, none, flags)); });
  const auto actual = run(*linear, {a, c}, [&] {
    return loss_of(checkpoint(function, a, at::Tensor(), pair, some, none, flags));
  });
  expect_same(actual, expected);
}

TEST(Checkpoint, results_that_backward_does_not_need_are_left_out) {
  const auto x = torch::ones({3}, torch::requires_grad());
  const auto [used, unused] =
      checkpoint([](const at::Tensor& h) { return std::make_tuple(h * 2, h * 3); }, x);
  used.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 2.0)));
}

TEST(Checkpoint, nested_checkpoints_recompute_each_its_own) {
  torch::manual_seed(1);
  Block outer(0.3);
  Block inner(0.3);
  const auto x = torch::randn({5, 8}, torch::requires_grad());
  nn::Sequential both(outer, inner);
  const auto expected = run(*both, {x}, [&] { return inner(outer(x)).square().sum(); });
  const auto actual = run(*both, {x}, [&] {
    const auto nested = [outer, inner](const at::Tensor& h) mutable {
      return checkpoint([inner](const at::Tensor& g) mutable { return inner(g); }, outer(h));
    };
    return checkpoint(nested, x).square().sum();
  });
  expect_same(actual, expected);
}

TEST(Checkpoint, a_parameter_used_in_two_checkpoints_gets_both_gradients) {
  torch::manual_seed(1);
  Block block;
  const auto x = torch::randn({5, 8});
  const auto call = [block](const at::Tensor& h) mutable { return block(h); };
  const auto expected = run(*block, {}, [&] { return block(block(x)).sum(); });
  const auto actual = run(*block, {}, [&] { return checkpoint(call, checkpoint(call, x)).sum(); });
  EXPECT_TRUE(torch::equal(actual.loss, expected.loss));
  for (std::size_t i = 0; i < expected.grads.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual.grads[i], expected.grads[i], 1e-6, 1e-6));
  }
}

TEST(Checkpoint, autocast_of_the_forward_holds_in_recomputation) {
  torch::manual_seed(1);
  Block block;
  const auto x = torch::randn({5, 8}, torch::requires_grad());
  std::vector<at::ScalarType> dtypes;
  const auto call = [block, &dtypes](const at::Tensor& h) mutable {
    dtypes.push_back(block->in(h).scalar_type());
    return block(h);
  };
  const auto under_autocast = [&](const auto& body) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto loss = body().to(torch::kFloat).square().sum();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return loss;
  };
  const auto expected =
      run(*block, {x}, [&] { return under_autocast([&] { return block(x) + block(x); }); });
  // A weight first cast while no graph was recorded still gets its gradient afterwards.
  const auto actual = run(
      *block, {x}, [&] { return under_autocast([&] { return checkpoint(call, x) + block(x); }); });
  EXPECT_THAT(dtypes, ::testing::Each(torch::kBFloat16));
  EXPECT_EQ(dtypes.size(), 2U);
  EXPECT_TRUE(torch::equal(actual.loss, expected.loss));
  for (std::size_t i = 0; i < expected.grads.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual.grads[i], expected.grads[i], 0.02, 0.02)) << i;
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Checkpoint, without_recording_it_is_a_plain_call) {
  Block block;
  const auto x = torch::randn({5, 8});
  const torch::NoGradGuard no_grad;
  const auto y = checkpoint([block](const at::Tensor& h) mutable { return block(h); }, x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(block->calls, 1);
}

TEST(Checkpoint, a_frozen_function_is_not_in_the_way_of_backward) {
  Block block;
  for (auto& parameter : block->parameters()) parameter.set_requires_grad(false);
  const auto y =
      checkpoint([block](const at::Tensor& h) mutable { return block(h); }, torch::randn({5, 8}));
  y.sum().backward();
  for (const auto& parameter : block->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Checkpoint, refuses_what_a_backward_inside_backward_cannot_do) {
  const auto x = torch::ones({3}, torch::requires_grad());
  const auto make = [&] {
    return checkpoint([](const at::Tensor& h) { return h.exp(); }, x).sum();
  };
  EXPECT_THAT(error_of([&] { torch::autograd::grad({make()}, {x}); }), HasSubstr("autograd::grad"));
  EXPECT_THAT(error_of([&] { make().backward({}, std::nullopt, false, at::TensorList{x}); }),
              HasSubstr("autograd::grad"));
  EXPECT_THAT(error_of([&] { make().backward({}, true, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
  auto twice = make();
  twice.backward();
  EXPECT_THAT(error_of([&] { twice.backward(); }), HasSubstr("second time"));
  auto kept = make();
  kept.backward({}, /*retain_graph=*/true);
  kept.backward();
}

TEST(Checkpoint, an_argument_modified_in_place_is_found) {
  const auto x = torch::ones({3}, torch::requires_grad());
  auto h = x * 2;
  const auto y = checkpoint([](const at::Tensor& value) { return value.exp(); }, h);
  h.add_(1);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(Checkpoint, an_error_in_recomputation_reaches_the_caller_and_leaves_the_thread_as_it_was) {
  const auto x = torch::ones({3}, torch::requires_grad());
  int calls = 0;
  const auto y = checkpoint(
      [&calls](const at::Tensor& h) {
        TORCH_CHECK(calls++ == 0, "out of luck");
        return h.exp();
      },
      x);
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), HasSubstr("out of luck"));
  EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

std::shared_ptr<const CheckpointPolicy> policy_for(const nn::Module* wanted) {
  return std::make_shared<const CheckpointPolicy>(
      [wanted](const nn::Module& module) { return &module == wanted; });
}

TEST(CheckpointModule, recomputes_the_modules_that_the_scope_wants) {
  torch::manual_seed(1);
  Block first(0.2);
  Block second(0.2);
  nn::Sequential both(first, second);
  const auto x = torch::randn({5, 8});
  const auto loss = [&] {
    return checkpoint_module(second, checkpoint_module(first, x)).square().sum();
  };
  const auto expected = run(*both, {}, loss);
  EXPECT_EQ(first->calls, 1);
  EXPECT_EQ(second->calls, 1);
  Outcome actual;
  {
    const CheckpointPolicyScope scope(policy_for(first.get()));
    const CheckpointPolicyScope inner(policy_for(second.get()));
    actual = run(*both, {}, loss);
  }
  expect_same(actual, expected);
  EXPECT_EQ(first->calls, 2);
  EXPECT_EQ(second->calls, 3);
  EXPECT_EQ(checkpoint_policy(), nullptr);
}

// A module that checkpoints a child of its own, and one whose forward takes and returns more than
// tensors.
struct OuterImpl : nn::Module {
  OuterImpl() : inner(register_module("inner", Block(0.2))) {}
  at::Tensor forward(const at::Tensor& x) { return checkpoint_module(inner, x).sin(); }
  Block inner;
};
TORCH_MODULE(Outer);

TEST(CheckpointModule, the_policy_holds_in_recomputation_also_after_its_scope_ended) {
  torch::manual_seed(1);
  Outer outer;
  const auto x = torch::randn({5, 8});
  const auto expected = run(*outer, {}, [&] { return outer(x).sum(); });
  outer->inner->calls = 0;
  const auto actual = run(*outer, {}, [&] {
    const CheckpointPolicyScope scope(
        std::make_shared<const CheckpointPolicy>([](const nn::Module&) { return true; }));
    return checkpoint_module(outer, x).sum();
  });
  expect_same(actual, expected);
  // Once each: in forward, in the recomputation of the outer one, and in that of the inner one.
  EXPECT_EQ(outer->inner->calls, 3);
}

TEST(CheckpointModule, default_arguments_and_nested_results_of_an_lstm) {
  torch::manual_seed(1);
  nn::LSTM lstm(nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true));
  const auto x = torch::randn({5, 2, 4}, torch::requires_grad());
  const auto loss = [&] {
    auto [output, state] = checkpoint_module(lstm, x);
    auto [again, last] = checkpoint_module(
        lstm, output.narrow(2, 0, 4), std::optional<std::tuple<at::Tensor, at::Tensor>>(state));
    return again.sum() + std::get<1>(last).square().sum();
  };
  const auto expected = run(*lstm, {x}, loss);
  const CheckpointPolicyScope scope(policy_for(lstm.get()));
  const auto actual = run(*lstm, {x}, loss);
  EXPECT_TRUE(torch::equal(actual.loss, expected.loss));
  for (std::size_t i = 0; i < expected.grads.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual.grads[i], expected.grads[i], 1e-5, 1e-6)) << i;
  }
}

}  // namespace
}  // namespace fsdp
