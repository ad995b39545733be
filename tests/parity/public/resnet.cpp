// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/resnet.h"

#include <torch/torch.h>

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv3x3(std::int64_t channels_in, std::int64_t channels_out, std::int64_t stride = 1) {
  return nn::Conv2d(
      nn::Conv2dOptions(channels_in, channels_out, 3).stride(stride).padding(1).bias(false));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(std::int64_t channels_in, std::int64_t channels_out,
                               std::int64_t stride)
    : conv1(conv3x3(channels_in, channels_out, stride)),
      conv2(conv3x3(channels_out, channels_out)),
      bn1(channels_out),
      bn2(channels_out) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("conv2", conv2);
  register_module("bn2", bn2);
  if (stride != 1 || channels_in != channels_out) {
    downsample = nn::Sequential(
        nn::Conv2d(nn::Conv2dOptions(channels_in, channels_out, 1).stride(stride).bias(false)),
        nn::BatchNorm2d(channels_out));
    register_module("downsample", downsample);
  }
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = bn2(conv2(torch::relu(bn1(conv1(x)))));
  return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
}

ResNetImpl::ResNetImpl()
    : conv1_(register_module("conv1", conv3x3(3, 8))),
      bn1_(register_module("bn1", nn::BatchNorm2d(8))),
      layer1_(register_module("layer1", nn::Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1)))),
      layer2_(
          register_module("layer2", nn::Sequential(BasicBlock(8, 12, 2), BasicBlock(12, 12, 1)))),
      avgpool_(register_module("avgpool", nn::AdaptiveAvgPool2d(1))),
      fc_(register_module("fc", nn::Linear(12, 6))) {}

at::Tensor ResNetImpl::forward(const at::Tensor& x) {
  at::Tensor y = torch::relu(bn1_(conv1_(x)));
  y = layer2_->forward(layer1_->forward(y));
  return fc_(avgpool_(y).flatten(1));
}

}  // namespace fsdp::test
