// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/unet.h"

#include <torch/torch.h>

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv3x3(std::int64_t channels_in, std::int64_t channels_out) {
  return nn::Conv2d(nn::Conv2dOptions(channels_in, channels_out, 3).padding(1));
}

nn::ConvTranspose2d twice_as_large(std::int64_t channels_in, std::int64_t channels_out) {
  return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(channels_in, channels_out, 2).stride(2));
}

}  // namespace

DoubleConvImpl::DoubleConvImpl(std::int64_t channels_in, std::int64_t channels_out)
    : conv1(register_module("conv1", conv3x3(channels_in, channels_out))),
      conv2(register_module("conv2", conv3x3(channels_out, channels_out))),
      norm1(register_module("norm1", nn::GroupNorm(2, channels_out))),
      norm2(register_module("norm2", nn::GroupNorm(2, channels_out))) {}

at::Tensor DoubleConvImpl::forward(const at::Tensor& x) {
  return torch::silu(norm2(conv2(torch::silu(norm1(conv1(x))))));
}

UNetImpl::UNetImpl()
    : down1_(register_module("down1", DoubleConv(3, 6))),
      down2_(register_module("down2", DoubleConv(6, 8))),
      middle_(register_module("middle", DoubleConv(8, 10))),
      merge2_(register_module("merge2", DoubleConv(16, 8))),
      merge1_(register_module("merge1", DoubleConv(12, 6))),
      pool_(register_module("pool", nn::MaxPool2d(2))),
      up2_(register_module("up2", twice_as_large(10, 8))),
      up1_(register_module("up1", twice_as_large(8, 6))),
      out_(register_module("out", nn::Conv2d(nn::Conv2dOptions(6, 4, 1)))) {}

at::Tensor UNetImpl::forward(const at::Tensor& x) {
  const at::Tensor first = down1_(x);
  const at::Tensor second = down2_(pool_(first));
  at::Tensor y = up2_(middle_(pool_(second)));
  y = up1_(merge2_(torch::cat({y, second}, 1)));
  y = out_(merge1_(torch::cat({y, first}, 1)));
  return y.permute({0, 2, 3, 1});
}

}  // namespace fsdp::test
