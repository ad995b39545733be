// SPDX-License-Identifier: Apache-2.0
// A Llama: RMS norms, rotary places by complex numbers that are not a buffer, queries that share
// keys, SwiGLU.
#pragma once

#include "tests/parity/models.h"

namespace fsdp::test {

struct RMSNormImpl : torch::nn::Module {
  explicit RMSNormImpl(std::int64_t width);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
};
TORCH_MODULE(RMSNorm);

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(std::int64_t width, std::int64_t head_count, std::int64_t kv_head_count);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& turns);

  std::int64_t heads, kv_heads;
  torch::nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
};
TORCH_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl(std::int64_t width, std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear w1{nullptr}, w2{nullptr}, w3{nullptr};
};
TORCH_MODULE(FeedForward);

struct TransformerBlockImpl : torch::nn::Module {
  TransformerBlockImpl(std::int64_t width, std::int64_t heads, std::int64_t kv_heads,
                       std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& turns);

  Attention attention;
  FeedForward feed_forward;
  RMSNorm attention_norm, ffn_norm;
};
TORCH_MODULE(TransformerBlock);

class LlamaImpl : public ParityModel {
 public:
  LlamaImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::Embedding tok_embeddings_;
  torch::nn::ModuleList layers_;
  RMSNorm norm_;
  torch::nn::Linear output_;
  at::Tensor turns_;
};

}  // namespace fsdp::test
