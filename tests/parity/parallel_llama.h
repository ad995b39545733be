// SPDX-License-Identifier: Apache-2.0
// A Llama with tensor-parallel layers, and experts in some of its blocks: the twin of the one in
// parallel_llama.py.  On a mesh of one rank it is an ordinary model.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include <torch/torch.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/fully_shard.h"
#include "libfsdp/parallel/differentiable.h"
#include "libfsdp/parallel/expert_parallel.h"
#include "libfsdp/parallel/tensor_parallel.h"

namespace fsdp::test {

struct LlamaSizes {
  std::int64_t vocabulary = 61;
  std::int64_t dim = 16;
  std::int64_t hidden = 24;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  std::int64_t experts = 0;  // 0: each block has a feed-forward network
  bool sequence = false;     // sequence parallelism
  bool bias = false;         // in linear layers
  bool recompute = false;    // blocks in backward
};

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const LlamaSizes& s, const DeviceMesh& tp) : head(s.dim / s.heads) {
    ParallelLinearOptions column{s.dim, s.dim, s.bias};
    column.prepared_input = true;  // by the block
    wq = register_module("wq", ColumnParallelLinear(column, tp));
    wk = register_module("wk", ColumnParallelLinear(column, tp));
    wv = register_module("wv", ColumnParallelLinear(column, tp));
    ParallelLinearOptions row{s.dim, s.dim, s.bias};
    if (s.sequence) row.sequence_dim = 1;
    wo = register_module("wo", RowParallelLinear(row, tp));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads_of = [&](ColumnParallelLinear& layer) {
      return layer(x).view({x.size(0), x.size(1), -1, head}).transpose(1, 2);
    };
    const auto scores =
        heads_of(wq).matmul(heads_of(wk).transpose(2, 3)) / std::sqrt(static_cast<double>(head));
    const auto ahead = torch::ones({x.size(1), x.size(1)}, x.options().dtype(torch::kBool)).triu(1);
    const auto mixed = scores.masked_fill(ahead, -INFINITY).softmax(-1).matmul(heads_of(wv));
    return wo(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}));
  }
  const std::int64_t head;
  ColumnParallelLinear wq{nullptr}, wk{nullptr}, wv{nullptr};
  RowParallelLinear wo{nullptr};
};
TORCH_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl(const LlamaSizes& s, const DeviceMesh& tp) {
    ParallelLinearOptions column{s.dim, s.hidden, s.bias};
    column.prepared_input = true;
    ParallelLinearOptions row{s.hidden, s.dim, s.bias};
    if (s.sequence) row.sequence_dim = 1;
    w1 = register_module("w1", ColumnParallelLinear(column, tp));
    w2 = register_module("w2", RowParallelLinear(row, tp));
    w3 = register_module("w3", ColumnParallelLinear(column, tp));
  }
  torch::Tensor forward(const torch::Tensor& x) { return w2(torch::silu(w1(x)) * w3(x)); }
  ColumnParallelLinear w1{nullptr}, w3{nullptr};
  RowParallelLinear w2{nullptr};
};
TORCH_MODULE(FeedForward);

// A norm that is whole on every rank.
struct RmsNormImpl : torch::nn::Module, ResetParameters {
  explicit RmsNormImpl(std::int64_t dim) {
    weight = register_parameter("weight", torch::empty({dim}));
    if (!weight.is_meta()) RmsNormImpl::reset_parameters();
  }
  void reset_parameters() override { torch::nn::init::ones_(weight); }
  torch::Tensor forward(const torch::Tensor& x) {
    return at::rms_norm(x, weight.sizes(), weight, 1e-5);
  }
  torch::Tensor weight;
};
TORCH_MODULE(RmsNorm);

// Each rank sends tokens of its own: of its data, or its part of a sequence.
struct MixtureImpl : torch::nn::Module {
  MixtureImpl(const LlamaSizes& s, const DeviceMesh& tp, const DeviceMesh& ep) : mesh(tp) {
    router = register_module(
        "router", torch::nn::Linear(torch::nn::LinearOptions(s.dim, s.experts).bias(false)));
    experts = register_module(
        "experts", ParallelExperts(ParallelExpertsOptions{s.experts, s.dim, s.hidden}, ep));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto tokens = x.reshape({-1, x.size(2)});
    // The router is whole on every rank, and sees a part of the tokens.
    const auto scores = at::linear(tokens, differentiable::copy(router->weight, mesh.group()));
    const auto [weights, choices] = scores.softmax(-1).topk(2, -1);
    return experts(tokens, choices, weights).view_as(x);
  }
  const DeviceMesh mesh;
  torch::nn::Linear router{nullptr};
  ParallelExperts experts{nullptr};
};
TORCH_MODULE(Mixture);

struct LlamaBlockImpl : torch::nn::Module {
  LlamaBlockImpl(const LlamaSizes& s, const DeviceMesh& tp, const std::optional<DeviceMesh>& ep)
      : sizes(s), mesh(tp) {
    attention = register_module("attention", Attention(s, tp));
    if (s.experts > 0) {
      mixture = register_module("moe", Mixture(s, tp, *ep));
    } else {
      feed_forward = register_module("feed_forward", FeedForward(s, tp));
    }
    if (s.sequence) {
      const SequenceParallelNormOptions norm{s.dim, 1e-5, /*rms=*/true};
      part_norm1 = register_module("attention_norm", SequenceParallelNorm(norm, tp));
      part_norm2 = register_module("ffn_norm", SequenceParallelNorm(norm, tp));
    } else {
      norm1 = register_module("attention_norm", RmsNorm(s.dim));
      norm2 = register_module("ffn_norm", RmsNorm(s.dim));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto whole = [&](const torch::Tensor& part) {
      return sizes.sequence ? differentiable::all_gather(part, 1, mesh.group())
                            : differentiable::copy(part, mesh.group());
    };
    const auto h = x + attention(whole(sizes.sequence ? part_norm1(x) : norm1(x)));
    const auto normed = sizes.sequence ? part_norm2(h) : norm2(h);
    return h + (mixture ? mixture(normed) : feed_forward(whole(normed)));
  }
  const LlamaSizes sizes;
  const DeviceMesh mesh;
  Attention attention{nullptr};
  FeedForward feed_forward{nullptr};
  Mixture mixture{nullptr};
  RmsNorm norm1{nullptr}, norm2{nullptr};
  SequenceParallelNorm part_norm1{nullptr}, part_norm2{nullptr};
};
TORCH_MODULE(LlamaBlock);

struct LlamaImpl : torch::nn::Module {
  LlamaImpl(const LlamaSizes& s, const DeviceMesh& tp, const std::optional<DeviceMesh>& ep = {})
      : sizes(s), mesh(tp) {
    ParallelEmbeddingOptions embedding{s.vocabulary, s.dim};
    if (s.sequence) embedding.sequence_dim = 1;
    tok_embeddings = register_module("tok_embeddings", ParallelEmbedding(embedding, tp));
    layers = register_module("layers", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < s.layers; ++i) layers->push_back(LlamaBlock(s, tp, ep));
    if (s.sequence) {
      part_norm = register_module(
          "norm", SequenceParallelNorm(SequenceParallelNormOptions{s.dim, 1e-5, /*rms=*/true}, tp));
    } else {
      norm = register_module("norm", RmsNorm(s.dim));
    }
    ParallelLinearOptions head{s.dim, s.vocabulary, false};
    if (s.sequence) head.sequence_dim = 1;
    output = register_module("output", ColumnParallelLinear(head, tp));
  }
  // [B, N] tokens -> the loss of predicting each from those before it.
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto inputs = tokens.slice(1, 0, -1);
    auto x = tok_embeddings(inputs);
    for (const auto& layer : *layers) {
      const auto block = [layer](const torch::Tensor& h) {
        return layer->as<LlamaBlock>()->forward(h);
      };
      x = sizes.recompute ? checkpoint(block, x) : block(x);
    }
    x = sizes.sequence ? part_norm(x) : norm(x);
    const auto logits = output(x);
    return cross_entropy_of_parts(logits.reshape({-1, logits.size(2)}),
                                  tokens.slice(1, 1).reshape({-1}), sizes.vocabulary, mesh);
  }
  const LlamaSizes sizes;
  const DeviceMesh mesh;
  ParallelEmbedding tok_embeddings{nullptr};
  torch::nn::ModuleList layers{nullptr};
  RmsNorm norm{nullptr};
  SequenceParallelNorm part_norm{nullptr};
  ColumnParallelLinear output{nullptr};
};
TORCH_MODULE(Llama);

// Shards blocks, and their experts over dimensions of their own.
inline std::shared_ptr<ShardedModule> shard_llama(Llama& model, const FullyShardOptions& options,
                                                  const std::optional<DeviceMesh>& edp = {}) {
  for (const auto& layer : *model->layers) {
    const auto block = std::dynamic_pointer_cast<LlamaBlockImpl>(layer);
    if (edp && block->mixture) {
      FullyShardOptions own = options;
      own.mesh = *edp;
      const auto experts = fully_shard(block->mixture->experts, own);
      // As many as have a loss of their own.
      experts->set_gradient_divide_factor(options.mesh->group()->size());
    }
    fully_shard(layer, options);
  }
  return fully_shard(model, options);
}

}  // namespace fsdp::test
