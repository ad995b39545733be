// SPDX-License-Identifier: Apache-2.0
// PixelSNAIL's masked convolution: forward writes zeros over a part of a parameter, and gives the
// convolution inside a weight that it has just computed, instead of the registered one.
#pragma once

#include <array>

#include "tests/parity/models.h"

namespace fsdp::test {

struct NormedConv2dImpl : torch::nn::Module {
  NormedConv2dImpl(std::int64_t channels_in, std::int64_t channels_out,
                   std::array<std::int64_t, 2> kernel, bool bias = true);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d conv;
  at::Tensor v, g;
};
TORCH_MODULE(NormedConv2d);

struct CausalConv2dImpl : torch::nn::Module {
  CausalConv2dImpl(std::int64_t channels_in, std::int64_t channels_out, std::int64_t kernel);
  at::Tensor forward(const at::Tensor& x);

  std::int64_t reach;
  NormedConv2d conv;
};
TORCH_MODULE(CausalConv2d);

struct GatedResBlockImpl : torch::nn::Module {
  GatedResBlockImpl(std::int64_t channels, std::int64_t hidden, std::int64_t kernel);
  at::Tensor forward(const at::Tensor& x);

  CausalConv2d conv1, conv2;
};
TORCH_MODULE(GatedResBlock);

class PixelSNAILImpl : public ParityModel {
 public:
  PixelSNAILImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  CausalConv2d first_;
  torch::nn::ModuleList blocks_;
  NormedConv2d query_, key_, value_, out_;
};

}  // namespace fsdp::test
