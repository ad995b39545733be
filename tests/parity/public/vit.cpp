// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/vit.h"

#include <cmath>

#include <torch/torch.h>

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The same as in public_models.py.
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kPatch = 4;
constexpr std::int64_t kPatches = 4;

nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}));
}

}  // namespace

EncoderBlockImpl::EncoderBlockImpl(std::int64_t width, std::int64_t head_count)
    : heads(head_count),
      norm1(register_module("norm1", layer_norm(width))),
      norm2(register_module("norm2", layer_norm(width))),
      qkv(register_module("qkv", nn::Linear(nn::LinearOptions(width, 3 * width).bias(false)))),
      proj(register_module("proj", nn::Linear(width, width))),
      mlp(register_module("mlp", nn::Sequential(nn::Linear(width, 2 * width), nn::GELU(),
                                                nn::Linear(2 * width, width)))) {}

at::Tensor EncoderBlockImpl::forward(const at::Tensor& x) {
  const auto batch = x.size(0);
  const auto length = x.size(1);
  const auto width = x.size(2);
  const auto parts = qkv(norm1(x))
                         .view({batch, length, 3, heads, width / heads})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  const at::Tensor scores =
      parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads));
  const at::Tensor seen = torch::softmax(scores, -1).matmul(parts[2]);
  const at::Tensor y = x + proj(seen.transpose(1, 2).reshape({batch, length, width}));
  return y + mlp->forward(norm2(y));
}

ViTImpl::ViTImpl()
    : cls_token_(register_parameter("cls_token", torch::zeros({1, 1, kWidth}))),
      pos_embed_(register_parameter("pos_embed", torch::zeros({1, kPatches + 1, kWidth}))),
      patch_embed_(register_module(
          "patch_embed", nn::Conv2d(nn::Conv2dOptions(3, kWidth, kPatch).stride(kPatch)))),
      blocks_(register_module(
          "blocks", nn::Sequential(EncoderBlock(kWidth, kHeads), EncoderBlock(kWidth, kHeads)))),
      norm_(register_module("norm", layer_norm(kWidth))),
      head_(register_module("head", nn::Linear(kWidth, 6))) {}

at::Tensor ViTImpl::forward(const at::Tensor& x) {
  at::Tensor y = patch_embed_(x).flatten(2).transpose(1, 2);
  y = torch::cat({cls_token_.expand({y.size(0), -1, -1}), y}, 1) + pos_embed_;
  return head_(norm_(blocks_->forward(y)).select(1, 0));
}

}  // namespace fsdp::test
