// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/meta_device.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/libfsdp/error_of.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

template <typename Build>
auto on_meta(const Build& build) {
  const MetaDevice meta;
  return build();
}

// Compares a module built on the meta device and materialized with one built with memory from the
// same seed: the same names, shapes and values.
template <typename Build>
void expect_built_alike(const Build& build) {
  torch::manual_seed(17);
  auto expected = build();
  torch::manual_seed(17);
  auto actual = on_meta(build);
  for (const auto& parameter : actual->parameters()) EXPECT_TRUE(parameter.is_meta());
  materialize(*actual, torch::kCPU);
  const auto compare = [](const auto& left, const auto& right) {
    ASSERT_EQ(left.keys(), right.keys());
    for (const auto& item : left) {
      const auto& other = right[item.key()];
      EXPECT_EQ(item.value().requires_grad(), other.requires_grad()) << item.key();
      EXPECT_TRUE(torch::equal(item.value(), other)) << item.key();
    }
  };
  compare(actual->named_parameters(), expected->named_parameters());
  compare(actual->named_buffers(), expected->named_buffers());
}

TEST(MetaDevice, modules_of_torch_nn_get_the_values_they_would_have_had) {
  expect_built_alike([] { return nn::Linear(4, 5); });
  expect_built_alike([] { return nn::Linear(nn::LinearOptions(4, 5).bias(false)); });
  expect_built_alike([] { return nn::Bilinear(3, 4, 5); });
  expect_built_alike([] { return nn::Embedding(nn::EmbeddingOptions(7, 3).padding_idx(2)); });
  expect_built_alike([] { return nn::EmbeddingBag(7, 3); });
  expect_built_alike([] { return nn::LayerNorm(nn::LayerNormOptions({4, 5})); });
  expect_built_alike([] { return nn::GroupNorm(2, 4); });
  expect_built_alike([] { return nn::BatchNorm1d(3); });
  expect_built_alike([] { return nn::BatchNorm2d(3); });
  expect_built_alike([] { return nn::BatchNorm3d(3); });
  expect_built_alike([] { return nn::InstanceNorm1d(nn::InstanceNorm1dOptions(3).affine(true)); });
  expect_built_alike([] {
    return nn::InstanceNorm2d(nn::InstanceNorm2dOptions(3).affine(true).track_running_stats(true));
  });
  expect_built_alike([] { return nn::InstanceNorm3d(nn::InstanceNorm3dOptions(3).affine(true)); });
  expect_built_alike([] { return nn::Conv1d(4, 6, 3); });
  expect_built_alike([] { return nn::Conv2d(nn::Conv2dOptions(4, 6, 3).groups(2)); });
  expect_built_alike([] { return nn::Conv3d(nn::Conv3dOptions(4, 6, 3).bias(false)); });
  expect_built_alike([] { return nn::ConvTranspose1d(4, 6, 3); });
  expect_built_alike([] { return nn::ConvTranspose2d(4, 6, 3); });
  expect_built_alike([] { return nn::ConvTranspose3d(4, 6, 3); });
  expect_built_alike([] { return nn::PReLU(nn::PReLUOptions().num_parameters(3).init(0.5)); });
  expect_built_alike([] { return nn::RNN(3, 4); });
  expect_built_alike(
      [] { return nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true)); });
  expect_built_alike([] { return nn::GRU(3, 4); });
  expect_built_alike([] { return nn::RNNCell(3, 4); });
  expect_built_alike([] { return nn::LSTMCell(3, 4); });
  expect_built_alike([] { return nn::GRUCell(3, 4); });
  expect_built_alike([] { return nn::MultiheadAttention(6, 2); });
  expect_built_alike([] {
    return nn::MultiheadAttention(
        nn::MultiheadAttentionOptions(6, 2).kdim(4).vdim(5).add_bias_kv(true));
  });
  expect_built_alike([] { return nn::TransformerEncoderLayer(6, 2); });
  expect_built_alike([] { return nn::TransformerDecoderLayer(6, 2); });
}

struct ModelImpl : nn::Module {
  ModelImpl()
      : embedding(register_module("embedding", nn::Embedding(11, 6))),
        blocks(register_module("blocks", nn::ModuleList())),
        head(register_module("head", nn::Linear(nn::LinearOptions(6, 11)))) {
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({6})), nn::Linear(6, 6)));
    }
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto h = embedding(tokens);
    for (const auto& block : *blocks) h = h + block->as<nn::Sequential>()->forward(h);
    return head(h);
  }
  nn::Embedding embedding;
  nn::ModuleList blocks;
  nn::Linear head;
};
TORCH_MODULE(Model);

TEST(MetaDevice, a_model_trains_after_materialization) {
  auto model = on_meta([] { return Model(); });
  materialize(*model, torch::kCPU);
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  const auto tokens = torch::arange(11);
  const auto loss = [&] { return torch::nn::functional::cross_entropy(model(tokens), tokens); };
  const auto before = loss().item<double>();
  for (int i = 0; i < 10; ++i) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  EXPECT_LT(loss().item<double>(), before);
}

TEST(MetaDevice, a_transformer_is_initialized_as_it_initializes_itself) {
  torch::manual_seed(17);
  const auto build = [] { return nn::Transformer(nn::TransformerOptions(16, 2, 2, 2)); };
  auto expected = build();
  auto actual = on_meta(build);
  materialize(*actual, torch::kCPU);
  // Its constructor draws numbers for layers that it then clones, so values differ, but not their
  // distribution: the bounds of Xavier's uniform distribution.
  const auto parameters = actual->named_parameters();
  for (const auto& item : expected->named_parameters()) {
    const auto& other = parameters[item.key()];
    ASSERT_EQ(other.sizes(), item.value().sizes());
    const auto bound = item.value().abs().max().item<double>();
    if (item.value().dim() < 2) {
      EXPECT_LE(other.abs().max().item<double>(), 1.0) << item.key();
      continue;
    }
    EXPECT_NEAR(other.abs().max().item<double>(), bound, 0.1 * bound) << item.key();
    EXPECT_NEAR(other.std().item<double>(), item.value().std().item<double>(), 0.2 * bound);
  }
}

TEST(MetaDevice, modules_made_of_others_are_initialized_by_them) {
  torch::manual_seed(17);
  auto softmax = on_meta([] {
    return nn::AdaptiveLogSoftmaxWithLoss(
        nn::AdaptiveLogSoftmaxWithLossOptions(32, 20, {5, 9}).head_bias(true));
  });
  materialize(*softmax, torch::kCPU);
  for (const auto& item : softmax->named_parameters()) {
    const auto fan_in = item.value().dim() < 2 ? 32 : item.value().size(1);
    const auto bound = 1 / std::sqrt(static_cast<double>(fan_in));
    EXPECT_LE(item.value().abs().max().item<double>(), bound) << item.key();
    EXPECT_GT(item.value().std().item<double>(), 0.3 * bound) << item.key();
  }
}

TEST(MetaDevice, no_memory_is_taken_until_materialization) {
  auto linear = on_meta([] { return nn::Linear(1'000'000, 1'000'000); });
  EXPECT_EQ(linear->weight.numel(), 1'000'000'000'000);
  EXPECT_TRUE(linear->weight.requires_grad());
}

TEST(MetaDevice, tensors_keep_their_identity_and_dtype) {
  struct Tied : nn::Module {
    Tied()
        : first(register_module("first", nn::Linear(4, 4))),
          second(register_module("second", nn::Linear(4, 4))),
          third(register_module("third", nn::Conv2d(4, 4, 1))) {
      second->weight = first->weight;
      third->to(torch::kFloat64);
      first->bias.set_requires_grad(false);
    }
    nn::Linear first;
    nn::Linear second;
    nn::Conv2d third;
  };
  Tied tied = on_meta([] { return Tied(); });
  const auto held = tied.first->weight;
  materialize(tied, torch::kCPU);
  EXPECT_TRUE(held.is_cpu());
  EXPECT_TRUE(held.is_same(tied.second->weight));
  EXPECT_TRUE(held.is_leaf());
  EXPECT_FALSE(tied.first->bias.requires_grad());
  EXPECT_EQ(tied.third->bias.scalar_type(), torch::kFloat64);
  // The tensor that the second one registered before it was tied is unused, but is not garbage.
  EXPECT_EQ(tied.second->named_parameters().front().value().abs().sum().item<double>(), 0);
  (tied.first(torch::ones({1, 4})) + tied.second(torch::ones({1, 4}))).sum().backward();
  EXPECT_TRUE(held.grad().is_cpu());
}

TEST(MetaDevice, what_had_memory_stays_as_it_was) {
  nn::Linear built(3, 3);
  auto late = on_meta([] { return nn::Linear(3, 3); });
  const auto before = built->weight.clone();
  nn::Sequential both(built, late);
  materialize(*both, torch::kCPU);
  EXPECT_TRUE(torch::equal(built->weight, before));
  EXPECT_TRUE(late->weight.is_cpu());
}

TEST(MetaDevice, ignored_modules_stay_on_the_meta_device) {
  auto both = on_meta([] { return nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)); });
  materialize(*both, torch::kCPU, {}, {both->ptr(0).get()});
  EXPECT_TRUE(both->at<nn::LinearImpl>(0).weight.is_meta());
  EXPECT_TRUE(both->at<nn::LinearImpl>(1).weight.is_cpu());
}

struct OwnImpl : nn::Module {
  OwnImpl() : weight(register_parameter("weight", torch::ones({3}))) {
    mask = register_buffer("mask", torch::tril(torch::ones({2, 2})));
  }
  at::Tensor weight;
  at::Tensor mask;
};

struct KnowingImpl : OwnImpl, ResetParameters {
  void reset_parameters() override {
    const torch::NoGradGuard no_grad;
    weight.fill_(2);
    mask.copy_(torch::tril(torch::ones({2, 2})));
  }
};

struct ForgetfulImpl : nn::LinearImpl {
  ForgetfulImpl() : LinearImpl(2, 2), scale(register_parameter("scale", torch::ones({2}))) {}
  at::Tensor scale;
};

template <typename M>
std::shared_ptr<nn::Module> below_root() {
  struct Root : nn::Module {
    Root() { register_module("child", std::make_shared<M>()); }
  };
  return on_meta([] { return std::make_shared<Root>(); });
}

TEST(MetaDevice, a_module_that_knows_how_initializes_itself) {
  const auto root = below_root<KnowingImpl>();
  materialize(*root, torch::kCPU);
  const auto child = std::dynamic_pointer_cast<KnowingImpl>(root->children()[0]);
  EXPECT_TRUE(torch::equal(child->weight, torch::full({3}, 2.0)));
  EXPECT_TRUE(torch::equal(child->mask, torch::tril(torch::ones({2, 2}))));
}

TEST(MetaDevice, param_init_fn_is_asked_for_each_module_with_meta_tensors_of_its_own) {
  const auto root = below_root<OwnImpl>();
  std::vector<std::string> names;
  materialize(*root, torch::kCPU, [&](nn::Module& module) {
    names.push_back(module.name());
    to_empty(module, torch::kCPU, /*recurse=*/false);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module.parameters()) parameter.fill_(3);
    for (auto& buffer : module.buffers()) buffer.fill_(4);
  });
  ASSERT_EQ(names.size(), 1U);
  EXPECT_THAT(names[0], HasSubstr("OwnImpl"));
  EXPECT_TRUE(torch::equal(root->parameters()[0], torch::full({3}, 3.0)));
  EXPECT_TRUE(torch::equal(root->buffers()[0], torch::full({2, 2}, 4.0)));
}

TEST(MetaDevice, what_nothing_initializes_is_named) {
  const auto unknown = error_of([] { materialize(*below_root<OwnImpl>(), torch::kCPU); });
  EXPECT_THAT(unknown, HasSubstr("module 'child' ("));
  EXPECT_THAT(unknown, HasSubstr("OwnImpl) with 'weight': set FsdpOptions::param_init_fn"));

  const auto forgotten = error_of([] { materialize(*below_root<ForgetfulImpl>(), torch::kCPU); });
  EXPECT_THAT(forgotten, HasSubstr("module 'child' ("));
  EXPECT_THAT(forgotten, HasSubstr("to write 'scale', found it untouched"));

  const auto left =
      error_of([] { materialize(*below_root<OwnImpl>(), torch::kCPU, [](const nn::Module&) {}); });
  EXPECT_THAT(left, HasSubstr("found 'weight' of module 'child' ("));
  EXPECT_THAT(left, HasSubstr("fsdp::to_empty"));

  const MetaDevice meta;
  EXPECT_THAT(error_of([] { materialize(*nn::Linear(1, 1), torch::kCPU); }),
              HasSubstr("found it open"));
}

TEST(MetaDevice, an_lstm_computes_after_materialization) {
  torch::manual_seed(5);
  nn::LSTM expected(nn::LSTMOptions(3, 4).num_layers(2));
  torch::manual_seed(5);
  auto actual = on_meta([] { return nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2)); });
  materialize(*actual, torch::kCPU);
  const auto x = torch::randn({5, 2, 3});
  EXPECT_TRUE(torch::equal(std::get<0>(actual(x)), std::get<0>(expected(x))));
}

TEST(MetaDevice, a_gradient_accumulator_of_the_meta_device_is_forgotten) {
  auto linear = on_meta([] { return nn::Linear(3, 3); });
  // Holds the accumulators, as a graph that outlives materialization would.
  const auto graph = linear(torch::ones({1, 3}, torch::kMeta)).sum();
  materialize(*linear, torch::kCPU);
  linear(torch::ones({1, 3})).sum().backward();
  EXPECT_TRUE(linear->weight.grad().is_cpu());
}

}  // namespace
}  // namespace fsdp
