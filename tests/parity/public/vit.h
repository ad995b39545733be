// SPDX-License-Identifier: Apache-2.0
// A vision transformer: patches by a convolution, and parameters of one row, the class token and
// the places.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "tests/parity/models.h"

namespace fsdp::test {

struct EncoderBlockImpl : torch::nn::Module {
  EncoderBlockImpl(std::int64_t width, std::int64_t head_count);
  at::Tensor forward(const at::Tensor& x);

  std::int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, proj;
  torch::nn::Sequential mlp;
};
TORCH_MODULE(EncoderBlock);

class ViTImpl : public ParityModel {
 public:
  ViTImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  at::Tensor cls_token_, pos_embed_;
  torch::nn::Conv2d patch_embed_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};

}  // namespace fsdp::test
