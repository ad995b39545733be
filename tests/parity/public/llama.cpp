// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/llama.h"

#include <torch/torch.h>

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The same as in public_models.py.
constexpr std::int64_t kVocabulary = 53;
constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kHidden = 40;
constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kContext = 16;

nn::Linear projection(std::int64_t width_in, std::int64_t width_out) {
  return nn::Linear(nn::LinearOptions(width_in, width_out).bias(false));
}

// Returns [kContext, half a head], complex: how far each place rotates each pair of numbers.
at::Tensor turns_of_places() {
  constexpr std::int64_t kHalf = kWidth / kHeads / 2;
  const at::Tensor frequencies = torch::pow(10000.0, -torch::arange(kHalf, at::kFloat) / kHalf);
  const at::Tensor angles = torch::outer(torch::arange(kContext, at::kFloat), frequencies);
  return torch::polar(torch::ones_like(angles), angles);
}

// x [B, T, heads, D].
at::Tensor rotated(const at::Tensor& x, const at::Tensor& turns) {
  const at::Tensor pairs =
      torch::view_as_complex(x.reshape({x.size(0), x.size(1), x.size(2), -1, 2}));
  return torch::view_as_real(pairs * turns.view({1, x.size(1), 1, -1})).flatten(3);
}

}  // namespace

RMSNormImpl::RMSNormImpl(std::int64_t width)
    : weight(register_parameter("weight", torch::ones({width}))) {}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  return x * torch::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + 1e-5) * weight;
}

AttentionImpl::AttentionImpl(std::int64_t width, std::int64_t head_count,
                             std::int64_t kv_head_count)
    : heads(head_count), kv_heads(kv_head_count) {
  wq = register_module("wq", projection(width, width));
  wk = register_module("wk", projection(width, kv_heads * (width / heads)));
  wv = register_module("wv", projection(width, kv_heads * (width / heads)));
  wo = register_module("wo", projection(width, width));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const at::Tensor& turns) {
  const auto batch = x.size(0);
  const auto length = x.size(1);
  const auto width = x.size(2);
  const at::Tensor q = rotated(wq(x).view({batch, length, heads, -1}), turns).transpose(1, 2);
  at::Tensor k = rotated(wk(x).view({batch, length, kv_heads, -1}), turns).transpose(1, 2);
  at::Tensor v = wv(x).view({batch, length, kv_heads, -1}).transpose(1, 2);
  k = k.repeat_interleave(heads / kv_heads, 1);
  v = v.repeat_interleave(heads / kv_heads, 1);
  const at::Tensor seen = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  return wo(seen.transpose(1, 2).reshape({batch, length, width}));
}

FeedForwardImpl::FeedForwardImpl(std::int64_t width, std::int64_t hidden) {
  w1 = register_module("w1", projection(width, hidden));
  w2 = register_module("w2", projection(hidden, width));
  w3 = register_module("w3", projection(width, hidden));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  return w2(torch::silu(w1(x)) * w3(x));
}

TransformerBlockImpl::TransformerBlockImpl(std::int64_t width, std::int64_t heads,
                                           std::int64_t kv_heads, std::int64_t hidden)
    : attention(register_module("attention", Attention(width, heads, kv_heads))),
      feed_forward(register_module("feed_forward", FeedForward(width, hidden))),
      attention_norm(register_module("attention_norm", RMSNorm(width))),
      ffn_norm(register_module("ffn_norm", RMSNorm(width))) {}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x, const at::Tensor& turns) {
  const at::Tensor y = x + attention(attention_norm(x), turns);
  return y + feed_forward(ffn_norm(y));
}

LlamaImpl::LlamaImpl()
    : tok_embeddings_(register_module("tok_embeddings", nn::Embedding(kVocabulary, kWidth))),
      layers_(register_module("layers", nn::ModuleList())),
      norm_(register_module("norm", RMSNorm(kWidth))),
      output_(register_module("output", projection(kWidth, kVocabulary))),
      turns_(turns_of_places()) {
  for (std::int64_t i = 0; i < kLayers; ++i) {
    layers_->push_back(TransformerBlock(kWidth, kHeads, kKvHeads, kHidden));
  }
}

at::Tensor LlamaImpl::forward(const at::Tensor& x) {
  at::Tensor y = tok_embeddings_(x);
  const at::Tensor turns = turns_.slice(0, 0, x.size(1));
  for (const auto& layer : *layers_) y = layer->as<TransformerBlock>()->forward(y, turns);
  return output_(norm_(y));
}

}  // namespace fsdp::test
