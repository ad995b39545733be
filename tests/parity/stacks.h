// SPDX-License-Identifier: Apache-2.0
// Parameters with fewer rows than ranks: stacks of experts [E, D, F], a table [1, N, D], and
// single numbers.
#pragma once

#include <cstdint>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/parity/models.h"

namespace fsdp::test {

// Every expert answers, and the answers are weighed.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl(std::int64_t count, std::int64_t width, std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor gate, up, down, scale;
};
TORCH_MODULE(Experts);

class StacksImpl : public ParityModel {
 public:
  StacksImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::Embedding emb_;
  at::Tensor places_;
  torch::nn::ModuleList blocks_;
  torch::nn::Linear head_;
};

}  // namespace fsdp::test
