// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/stacks.h"

#include <torch/torch.h>

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The same as in models.py.
constexpr std::int64_t kVocabulary = 53;
constexpr std::int64_t kContext = 9;
constexpr std::int64_t kWidth = 10;
constexpr std::int64_t kHidden = 7;

}  // namespace

ExpertsImpl::ExpertsImpl(std::int64_t count, std::int64_t width, std::int64_t hidden)
    : gate(register_parameter("gate", torch::zeros({count, width}))),
      up(register_parameter("up", torch::zeros({count, width, hidden}))),
      down(register_parameter("down", torch::zeros({count, hidden, width}))),
      scale(register_parameter("scale", torch::ones({1}))) {}

at::Tensor ExpertsImpl::forward(const at::Tensor& x) {
  const at::Tensor flat = x.flatten(0, 1);
  const at::Tensor weights = torch::softmax(flat.matmul(gate.t()), -1);
  const at::Tensor answers = torch::matmul(torch::tanh(torch::matmul(flat, up)), down);
  const at::Tensor weighed = (answers * weights.t().unsqueeze(-1)).sum(0);
  return x + weighed.view_as(x) * scale;
}

StacksImpl::StacksImpl()
    : emb_(register_module("emb", nn::Embedding(kVocabulary, kWidth))),
      places_(register_parameter("places", torch::zeros({1, kContext, kWidth}))),
      blocks_(register_module(
          "blocks", nn::ModuleList(Experts(2, kWidth, kHidden), Experts(3, kWidth, kHidden)))),
      head_(register_module("head", nn::Linear(kWidth, kVocabulary))) {}

at::Tensor StacksImpl::forward(const at::Tensor& x) {
  at::Tensor y = emb_(x) + places_;
  for (const auto& block : *blocks_) y = block->as<ExpertsImpl>()->forward(y);
  return head_(y);
}

}  // namespace fsdp::test
