// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/pixelsnail.h"

#include <cmath>

#include <torch/torch.h>

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::indexing::None;
using torch::indexing::Slice;

// The same as in public_models.py.
constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kHidden = 5;
constexpr std::int64_t kLevels = 4;

at::Tensor norm_of_filters(const at::Tensor& weight) {
  return weight.norm(2, {1, 2, 3}, /*keepdim=*/true);
}

}  // namespace

NormedConv2dImpl::NormedConv2dImpl(std::int64_t channels_in, std::int64_t channels_out,
                                   std::array<std::int64_t, 2> kernel, bool bias)
    : conv(register_module(
          "conv",
          nn::Conv2d(
              nn::Conv2dOptions(channels_in, channels_out, {kernel[0], kernel[1]}).bias(bias)))),
      v(register_parameter("v", conv->weight.detach().clone())),
      g(register_parameter("g", norm_of_filters(conv->weight.detach()))) {}

at::Tensor NormedConv2dImpl::forward(const at::Tensor& x) {
  conv->weight = g * v / norm_of_filters(v).clamp_min(1e-10);
  return conv(x);
}

CausalConv2dImpl::CausalConv2dImpl(std::int64_t channels_in, std::int64_t channels_out,
                                   std::int64_t kernel)
    : reach(kernel / 2),
      conv(register_module("conv",
                           NormedConv2d(channels_in, channels_out,
                                        std::array<std::int64_t, 2>{kernel / 2 + 1, kernel}))) {}

at::Tensor CausalConv2dImpl::forward(const at::Tensor& x) {
  const at::Tensor padded = torch::constant_pad_nd(x, {reach, reach, reach, 0});
  conv->v.data().index({Slice(), Slice(), -1, Slice(reach, None)}).zero_();
  return conv(padded);
}

GatedResBlockImpl::GatedResBlockImpl(std::int64_t channels, std::int64_t hidden,
                                     std::int64_t kernel)
    : conv1(register_module("conv1", CausalConv2d(channels, hidden, kernel))),
      conv2(register_module("conv2", CausalConv2d(hidden, 2 * channels, kernel))) {}

at::Tensor GatedResBlockImpl::forward(const at::Tensor& x) {
  return torch::glu(conv2(torch::elu(conv1(torch::elu(x)))), 1) + x;
}

PixelSNAILImpl::PixelSNAILImpl()
    : first_(register_module("first", CausalConv2d(1, kChannels, 5))),
      blocks_(register_module("blocks", nn::ModuleList(GatedResBlock(kChannels, kHidden, 3),
                                                       GatedResBlock(kChannels, kHidden, 3)))),
      query_(nullptr),
      key_(nullptr),
      value_(nullptr),
      out_(nullptr) {
  constexpr std::array<std::int64_t, 2> kPoint = {1, 1};
  query_ = register_module("query", NormedConv2d(kChannels, kChannels, kPoint, /*bias=*/false));
  key_ = register_module("key", NormedConv2d(kChannels, kChannels, kPoint, /*bias=*/false));
  value_ = register_module("value", NormedConv2d(kChannels, kChannels, kPoint, /*bias=*/false));
  out_ = register_module("out", NormedConv2d(kChannels, kLevels, kPoint));
}

at::Tensor PixelSNAILImpl::forward(const at::Tensor& x) {
  at::Tensor y = first_(x);
  for (const auto& block : *blocks_) y = block->as<GatedResBlock>()->forward(y);
  const auto flat = [](const at::Tensor& t) { return t.flatten(2).transpose(1, 2); };
  const at::Tensor q = flat(query_(y));
  const at::Tensor k = flat(key_(y));
  const at::Tensor v = flat(value_(y));
  const at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(kChannels));
  const auto places = scores.size(-1);
  const at::Tensor later = torch::ones({places, places}).triu(1);
  const at::Tensor seen = torch::softmax(scores.masked_fill(later == 1, -1e4), -1).matmul(v);
  y = y + seen.transpose(1, 2).reshape(y.sizes());
  return out_(torch::elu(y)).permute({0, 2, 3, 1});
}

}  // namespace fsdp::test
