// SPDX-License-Identifier: Apache-2.0
// A small GPT written with plain LibTorch.  Nothing in it depends on ranks; checkpoint_module() is
// a plain call of the block unless the options that wrap the model enable recomputation.
//
// B batch, T tokens of a sequence, D width, V vocabulary.
#pragma once

#include <cstdint>
#include <string>

#include <torch/torch.h>

#include "libfsdp/activation_checkpoint.h"

struct GPTOptions {
  std::int64_t vocabulary = 256;
  std::int64_t width = 64;  // a multiple of heads
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t length = 64;  // the longest sequence
};

inline torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, std::int64_t head_count)
      : heads(head_count),
        ln1(register_module("ln1", layer_norm(width))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        proj(register_module("proj", torch::nn::Linear(width, width))),
        ln2(register_module("ln2", layer_norm(width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  at::Tensor forward(const at::Tensor& x) {  // [B, T, D]
    const auto thirds = qkv(ln1(x)).chunk(3, -1);
    const auto by_head = [&](const at::Tensor& t) {  // [B, heads, T, D / heads]
      return t.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
    };
    const at::Tensor seen =
        at::scaled_dot_product_attention(by_head(thirds[0]), by_head(thirds[1]), by_head(thirds[2]),
                                         {}, /*dropout_p=*/0.0, /*is_causal=*/true);
    const at::Tensor y = x + proj(seen.transpose(1, 2).reshape(x.sizes()));
    return y + down(torch::gelu(up(ln2(y))));
  }

  std::int64_t heads;
  torch::nn::LayerNorm ln1;
  torch::nn::Linear qkv, proj;
  torch::nn::LayerNorm ln2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const GPTOptions& options)
      : emb(register_module("emb", torch::nn::Embedding(options.vocabulary, options.width))),
        pos(register_module("pos", torch::nn::Embedding(options.length, options.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        ln(register_module("ln", layer_norm(options.width))),
        head(register_module(
            "head", torch::nn::Linear(
                        torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)))) {
    for (std::int64_t i = 0; i < options.layers; ++i)
      blocks->push_back(Block(options.width, options.heads));
  }

  // tokens: [B, T], int64.  Returns logits [B, T, V].
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = emb(tokens) + pos(torch::arange(tokens.size(1), tokens.options()));
    for (const auto& module : *blocks)
      x = fsdp::checkpoint_module(std::dynamic_pointer_cast<BlockImpl>(module), x);
    return head(ln(x));
  }

  torch::nn::Embedding emb, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm ln;
  torch::nn::Linear head;
};
TORCH_MODULE(GPT);

// Draws matrices from N(0, 0.02) and zeroes biases; a seed gives the same in every process.
inline void initialize(torch::nn::Module& model, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() > 1) {
      item.value().normal_(0, 0.02);
    } else if (item.key().ends_with("bias")) {
      item.value().zero_();
    }
  }
}
