// SPDX-License-Identifier: Apache-2.0
// The model that train_step.cpp and train_step.py train, and its tokens; both have the same.
#pragma once

#include <cstdint>
#include <string>

#include <torch/torch.h>

#include "tests/parity/models.h"

namespace fsdp::bench {

struct Sizes {
  std::int64_t width = 64;
  std::int64_t layers = 4;
  std::int64_t vocabulary = 256;
  std::int64_t length = 32;
  std::int64_t batch = 2;  // a rank's
};

constexpr std::int64_t kHeads = 8;

struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const Sizes& sizes)
      : emb(register_module("emb", torch::nn::Embedding(sizes.vocabulary, sizes.width))),
        pos(register_module("pos", torch::nn::Embedding(sizes.length, sizes.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        ln(nullptr),
        head(nullptr) {
    for (std::int64_t i = 0; i < sizes.layers; ++i)
      blocks->push_back(test::Block(sizes.width, kHeads));
    ln = register_module("ln", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})));
    head = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(sizes.width, sizes.vocabulary).bias(false)));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = emb(x) + pos(torch::arange(x.size(1), x.options()));
    for (const auto& block : *blocks) y = block->as<test::BlockImpl>()->forward(y);
    return head(ln(y));
  }

  torch::nn::Embedding emb, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm ln;
  torch::nn::Linear head;
};
TORCH_MODULE(GPT);

// Overwrites the constructors' random values, which two languages may draw in another order.
inline void initialize(GPTImpl& model) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() > 1) {
      item.value().normal_(0, 0.02);
    } else if (item.key().ends_with("bias")) {
      item.value().zero_();
    }
  }
}

// Returns [batch, length + 1] for a step, different on each rank.
inline at::Tensor tokens(const Sizes& sizes, std::int64_t step, int rank) {
  const std::int64_t count = sizes.batch * (sizes.length + 1);
  const at::Tensor places = torch::arange(count) + (step * 64 + rank) * count;
  return (places * places % 7919 % sizes.vocabulary).view({sizes.batch, sizes.length + 1});
}

}  // namespace fsdp::bench
