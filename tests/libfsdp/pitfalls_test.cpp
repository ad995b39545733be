// SPDX-License-Identifier: Apache-2.0
// Known mistakes of engines of this kind; each test's name says what it guards against.  Operators
// on two units' parameters, views across frees, evaluation between steps, reentrant backwards:
// engine_test.cpp.  Reads outside of forward, replaced storages, ranks out of step:
// errors_test.cpp.  Ranks that are killed or stopped: process_group tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/engine/engine.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::HasSubstr;
using namespace test;  // the modules

// Returns the gradient of every parameter, whole, by name; then clears them.
template <typename Sharded>
std::map<std::string, Tensor> taken_gradients(Sharded& sharded) {
  std::map<std::string, Tensor> result;
  {
    const FullParams scope = sharded.summon_full_params({.writeback = false, .with_grads = true});
    for (const auto& item : sharded.module()->named_parameters()) {
      if (item.value().grad().defined()) result[item.key()] = item.value().grad().clone();
    }
  }
  for (auto& parameter : sharded.parameters()) parameter.mutable_grad().reset();
  return result;
}

void expect_equal(const std::map<std::string, Tensor>& left,
                  const std::map<std::string, Tensor>& right) {
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) EXPECT_TRUE(torch::equal(tensor, right.at(name))) << name;
}

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    TORCH_CHECK(false, "thrown in backward");
  }
};

// Layers in the given order; after `broken` of them, a function whose backward throws.
struct ChainImpl : nn::Module {
  ChainImpl() {
    for (const char* name : {"a", "b", "c", "d"})
      layers.push_back(register_module(name, nn::Linear(4, 4)));
  }
  Tensor forward(Tensor x, const std::vector<int>& order, int broken = -1) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (static_cast<int>(i) == broken) x = ThrowsInBackward::apply(x);
      x = torch::tanh(layers[static_cast<std::size_t>(order[i])](x));
    }
    return x;
  }
  std::vector<nn::Linear> layers;
};
TORCH_MODULE(Chain);

Chain filled_chain() {
  Chain module;
  fill_parameters(*module);
  return module;
}

TEST(Pitfalls, an_exception_in_a_gather_reaches_the_caller_and_the_next_step_works) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = options_over(group, always_wrap_policy());
    options.bucket_bytes = 0;  // gathers of other sizes end the process, inside Gloo
    FullyShardedDataParallel<Chain> sharded(filled_chain(), options);
    const Tensor x = random_values({2, 4}, 3);
    const std::vector<int> order{0, 1, 2, 3};
    const Tensor before = sharded.forward(x, order).detach();
    const std::vector<int> wrong = group->rank() == 0 ? order : std::vector<int>{2, 1, 0, 3};
    EXPECT_THAT(error_of([&] { sharded.forward(x, wrong); }), HasSubstr("one order"));
    EXPECT_TRUE(torch::equal(sharded.forward(x, order).detach(), before));
  });
}

TEST(Pitfalls, a_backward_that_threw_leaves_nothing_behind) {
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{1} << 20}) {
    spawn_ranks(2, [&](const Group& group) {
      FsdpOptions options = options_over(group, always_wrap_policy());
      options.bucket_bytes = bucket;
      FullyShardedDataParallel<Chain> sharded(filled_chain(), options);
      const Tensor x = random_values({2, 4}, static_cast<std::uint64_t>(group->rank()));
      const std::vector<int> order{0, 1, 2, 3};
      sharded.forward(x, order).sum().backward();
      const auto expected = taken_gradients(sharded);
      const Tensor loss = sharded.forward(x, order, 2).sum();
      EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("thrown in backward"));
      for (auto& parameter : sharded.parameters()) parameter.mutable_grad().reset();
      sharded.forward(x, order).sum().backward();
      expect_equal(taken_gradients(sharded), expected);
      EXPECT_EQ(engine_of(sharded).buffers().lent_bytes(Use::kParameters), 0);
      EXPECT_EQ(engine_of(sharded).buffers().lent_bytes(Use::kGradients), 0);
    });
  }
}

TEST(Pitfalls, an_order_that_changes_costs_gathers_but_not_correctness) {
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{1} << 20}) {
    spawn_ranks(2, [&](const Group& group) {
      FsdpOptions options = options_over(group, always_wrap_policy());
      options.bucket_bytes = bucket;
      options.forward_prefetch = true;
      FullyShardedDataParallel<Chain> sharded(filled_chain(), options);
      Chain whole = filled_chain();
      const std::vector<std::vector<int>> orders{{0, 1, 2, 3}, {3, 1},       {0, 1, 2, 3},
                                                 {2},          {1, 0, 1, 2}, {3, 2, 1, 0, 3}};
      for (const auto& order : orders) {
        Tensor loss = torch::zeros({});
        for (int rank = 0; rank < 2; ++rank)
          loss =
              loss +
              whole->forward(random_values({2, 4}, static_cast<std::uint64_t>(rank)), order).sum();
        whole->zero_grad();
        (loss / 2).backward();
        sharded.forward(random_values({2, 4}, static_cast<std::uint64_t>(group->rank())), order)
            .sum()
            .backward();
        for (const auto& [name, gradient] : taken_gradients(sharded)) {
          const Tensor expected = whole->named_parameters()[name].grad();
          EXPECT_LE(distance(gradient, expected.defined() ? expected : torch::zeros_like(gradient)),
                    2e-6)
              << name;
        }
      }
    });
  }
}

TEST(Pitfalls, buffers_are_used_again) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Gpt> sharded(filled_gpt(4),
                                          options_over(group, module_wrap_policy<BlockImpl>()));
    Buffers& buffers = engine_of(sharded).buffers();
    for (int step = 0; step < 3; ++step) gpt_loss(sharded, group->rank(), step).backward();
    buffers.reset_peak();
    gpt_loss(sharded, group->rank(), 3).backward();
    const auto once = buffers.peak_bytes(Use::kParameters);
    const auto free_buffers = buffers.free_count();
    for (int step = 4; step < 8; ++step) gpt_loss(sharded, group->rank(), step).backward();
    EXPECT_EQ(buffers.peak_bytes(Use::kParameters), once);
    EXPECT_EQ(buffers.free_count(), free_buffers);
  });
}

// C++ models tie weights by assigning a member: the registered parameter stays registered, unused.
struct ReassignedImpl : nn::Module {
  ReassignedImpl()
      : emb(register_module("emb", nn::Embedding(53, 24))),
        head(register_module("head", nn::Linear(nn::LinearOptions(24, 53).bias(false)))) {
    head->weight = emb->weight;
  }
  Tensor forward(const Tensor& tokens) { return head(emb(tokens)); }
  nn::Embedding emb;
  nn::Linear head;
};
TORCH_MODULE(Reassigned);

TEST(Pitfalls, a_weight_tied_by_assignment_trains_alike) {
  ShardedCase<Reassigned> test;
  test.build = [] {
    Reassigned module;
    fill_parameters(*module);
    return module;
  };
  test.options.use_orig_params = true;
  test.loss = [](const auto& forward, int rank, int step) {
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    return next_token_loss(forward(tokens), tokens);
  };
  expect_same_training(test, {1, 2, 3});
}

// One module registered under two names is one unit with one set of parameters.
struct TwiceImpl : nn::Module {
  TwiceImpl() : first(register_module("first", nn::Linear(4, 4))) {
    second = register_module("second", first);
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  nn::Linear first, second{nullptr};
};
TORCH_MODULE(Twice);

TEST(Pitfalls, a_module_registered_twice_is_one_unit) {
  ShardedCase<Twice> test;
  test.build = [] {
    Twice module;
    fill_parameters(*module);
    return module;
  };
  test.options.use_orig_params = true;
  test.options.auto_wrap_policy = always_wrap_policy();
  test.loss = [](const auto& forward, int rank, int step) {
    return forward(random_values({3, 4}, static_cast<std::uint64_t>(10 * step + rank)))
        .square()
        .sum();
  };
  expect_same_training(test, {1, 2});
}

TEST(Pitfalls, backward_may_run_twice_over_one_graph) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Chain> sharded(filled_chain(),
                                            options_over(group, always_wrap_policy()));
    const Tensor x = random_values({2, 4}, static_cast<std::uint64_t>(group->rank()));
    const Tensor loss = sharded.forward(x, std::vector<int>{0, 1, 2, 3}).sum();
    loss.backward({}, /*retain_graph=*/true);
    const auto once = taken_gradients(sharded);
    loss.backward();
    expect_equal(taken_gradients(sharded), once);
  });
}

TEST(Pitfalls, gradients_asked_for_by_name_are_not_reduced) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Chain> sharded(filled_chain(),
                                            options_over(group, always_wrap_policy()));
    Chain whole = filled_chain();
    const Tensor x = random_values({2, 4}, static_cast<std::uint64_t>(group->rank()));
    const std::vector<int> order{0, 1, 2, 3};
    const auto expected =
        torch::autograd::grad({whole->forward(x, order).sum()}, {whole->layers[1]->weight});
    const auto found =
        torch::autograd::grad({sharded.forward(x, order).sum()}, {sharded->layers[1]->weight});
    EXPECT_TRUE(torch::equal(found[0], expected[0]));
    for (const auto& parameter : sharded.parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

}  // namespace
}  // namespace fsdp
