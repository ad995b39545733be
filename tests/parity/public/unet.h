// SPDX-License-Identifier: Apache-2.0
// A U-Net: group norms, activations of the way down joined on the way up, transposed convolutions.
#pragma once

#include <torch/nn/modules/pooling.h>

#include "tests/parity/models.h"

namespace fsdp::test {

struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(std::int64_t channels_in, std::int64_t channels_out);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d conv1, conv2;
  torch::nn::GroupNorm norm1, norm2;
};
TORCH_MODULE(DoubleConv);

class UNetImpl : public ParityModel {
 public:
  UNetImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  DoubleConv down1_, down2_, middle_, merge2_, merge1_;
  torch::nn::MaxPool2d pool_;
  torch::nn::ConvTranspose2d up2_, up1_;
  torch::nn::Conv2d out_;
};

}  // namespace fsdp::test
