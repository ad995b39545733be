// SPDX-License-Identifier: Apache-2.0
// A residual network: batch norms, shortcuts with a projection where shapes change, stages of
// nn::Sequential.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/pooling.h>

#include "tests/parity/models.h"

namespace fsdp::test {

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t channels_in, std::int64_t channels_out, std::int64_t stride);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d bn1, bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

class ResNetImpl : public ParityModel {
 public:
  ResNetImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_;
  torch::nn::AdaptiveAvgPool2d avgpool_;
  torch::nn::Linear fc_;
};

}  // namespace fsdp::test
