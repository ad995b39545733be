// SPDX-License-Identifier: Apache-2.0
// Unmodified modules, each difficult in its own way.
#pragma once

#include <vector>

#include <torch/torch.h>

#include "libfsdp/activation_checkpoint.h"

namespace fsdp::test {

namespace nn = torch::nn;
using torch::Tensor;

inline Tensor next_token_loss(const Tensor& logits, const Tensor& tokens) {
  return nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                       tokens.to(logits.device()).view({-1}));
}

struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width, bool checkpointed = false)
      : ln1(register_module("ln1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        ln2(register_module("ln2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        proj(register_module("proj", nn::Linear(width, width))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))),
        checkpointed_(checkpointed) {}

  Tensor forward(const Tensor& x) {
    if (!checkpointed_) return compute(x);
    return fsdp::checkpoint([this](const Tensor& input) { return compute(input); }, x);
  }

  Tensor compute(Tensor x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(ln1(x)).chunk(3, -1);
    const auto heads = [&](const Tensor& t) {
      return t.view({batch, length, 4, width / 4}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                          heads(parts[2]), {}, 0.0, true);
    x = x + proj(mixed.transpose(1, 2).reshape({batch, length, width}));
    return x + down(torch::gelu(up(ln2(x))));
  }

  nn::LayerNorm ln1, ln2;
  nn::Linear qkv, proj, up, down;
  bool checkpointed_;
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  explicit GptImpl(int layers = 3, bool checkpointed = false, std::int64_t width = 24)
      : emb(register_module("emb", nn::Embedding(53, width))),
        ln(register_module("ln", nn::LayerNorm(nn::LayerNormOptions({width})))),
        head(register_module("head", nn::Linear(nn::LinearOptions(width, 53).bias(false)))) {
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < layers; ++i) blocks->push_back(Block(width, checkpointed));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = emb(tokens);
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(ln(x));
  }
  nn::Embedding emb;
  nn::ModuleList blocks;
  nn::LayerNorm ln;
  nn::Linear head;
};
TORCH_MODULE(Gpt);

// Two units' parameters in one operator, and operators that call others on them.
struct CrossedImpl : nn::Module {
  CrossedImpl()
      : a(register_module("a", nn::Linear(6, 6))), b(register_module("b", nn::Linear(6, 6))) {}
  Tensor forward(const Tensor& x) {
    const Tensor w = at::stack({a->weight, b->weight}).sum(0);
    const Tensor y = torch::linear(x, w, a->bias + b->bias);
    return torch::addmm(y, torch::tanh(a(y)), b->weight) * torch::mm(a->weight, b->weight).mean();
  }
  nn::Linear a, b;
};
TORCH_MODULE(Crossed);

// Views of a parameter are taken, its unit is resharded by others, and the views are used.
struct ViewedImpl : nn::Module {
  ViewedImpl()
      : a(register_module("a", nn::Linear(6, 6))),
        b(register_module("b", nn::Linear(6, 6))),
        c(register_module("c", nn::Linear(6, 6))) {}
  Tensor forward(const Tensor& x) {
    const Tensor transposed = a->weight.t();
    const Tensor row = a->weight[2];
    Tensor y = x.matmul(transposed);
    y = torch::tanh(b(y));
    y = torch::tanh(c(y));
    return y.matmul(transposed) + row + a->weight.narrow(0, 1, 3).sum();
  }
  nn::Linear a, b, c;
};
TORCH_MODULE(Viewed);

// Fewer rows than ranks, a 0-dimensional parameter, an empty one, and one that is never used.
struct OddImpl : nn::Module {
  OddImpl()
      : a(register_module("a", nn::Linear(7, 5))),
        b(register_module("b", nn::Linear(5, 1))),
        unused(register_module("unused", nn::Linear(3, 3))) {
    scale = register_parameter("scale", torch::ones({}));
    empty = register_parameter("empty", torch::ones({0, 3}));
    spare = register_parameter("spare", torch::ones({2, 3, 3}));
  }
  Tensor forward(const Tensor& x) { return b(torch::tanh(a(x))) * scale + empty.sum(); }
  nn::Linear a, b, unused;
  Tensor scale, empty, spare;
};
TORCH_MODULE(Odd);

// Stacks of matrices, a table of one row of rows, and single numbers.
struct StacksImpl : nn::Module {
  StacksImpl() {
    up = register_parameter("up", torch::ones({3, 7, 5}));
    down = register_parameter("down", torch::ones({2, 1, 5, 7}));
    table = register_parameter("table", torch::ones({1, 4, 7}));
    gain = register_parameter("gain", torch::ones({1}));
    shift = register_parameter("shift", torch::ones({}));
  }
  Tensor forward(const Tensor& x) {
    const Tensor hidden = torch::tanh(torch::matmul(x, up)).sum(0);
    const Tensor y = torch::matmul(hidden, down).flatten(0, 1).sum(0) * gain;
    return y + table.flatten(0, 1).sum(0) + shift;
  }
  Tensor up, down, table, gain, shift;
};
TORCH_MODULE(Stacks);

struct TiedImpl : nn::Module {
  TiedImpl()
      : emb(register_module("emb", nn::Embedding(53, 24))),
        mid(register_module("mid", nn::Linear(24, 24))) {}
  Tensor forward(const Tensor& tokens) {
    return torch::linear(torch::gelu(mid(emb(tokens))), emb->weight);
  }
  nn::Embedding emb;
  nn::Linear mid;
};
TORCH_MODULE(Tied);

// A recurrent net behind a Sequential: cuDNN's flat weights, type-erased calls.
struct RecurrentImpl : nn::Module {
  RecurrentImpl()
      : before(register_module("before", nn::Sequential(nn::Linear(6, 10), nn::ReLU(),
                                                        nn::Linear(10, 7), nn::Tanh()))),
        lstm(register_module(
            "lstm",
            nn::LSTM(nn::LSTMOptions(7, 9).num_layers(2).bidirectional(true).batch_first(true)))),
        head(register_module("head", nn::Linear(18, 1))) {}
  Tensor forward(const Tensor& x) { return head(std::get<0>(lstm(before->forward(x)))); }
  nn::Sequential before;
  nn::LSTM lstm;
  nn::Linear head;
};
TORCH_MODULE(Recurrent);

// Many kinds of modules at once.
struct ZooImpl : nn::Module {
  ZooImpl()
      : conv(register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 6, 3).padding(1)))),
        batch(register_module("batch", nn::BatchNorm2d(6))),
        prelu(register_module("prelu", nn::PReLU())),
        up(register_module("up",
                           nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 4, 2).stride(2)))),
        group(register_module("group", nn::GroupNorm(nn::GroupNormOptions(2, 4)))),
        gru(register_module("gru", nn::GRU(nn::GRUOptions(32, 8).batch_first(true)))),
        attention(register_module("attention",
                                  nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)))),
        encoder(register_module(
            "encoder",
            nn::TransformerEncoderLayer(
                nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(11).dropout(0)))),
        bilinear(register_module("bilinear", nn::Bilinear(8, 8, 3))) {}
  Tensor forward(const Tensor& x) {
    Tensor y = prelu(batch(conv(x)));
    y = group(up(y));
    y = y.flatten(2).unfold(2, 32, 32).flatten(1, 2);
    y = std::get<0>(gru(y));
    y = y.transpose(0, 1);
    y = y + std::get<0>(attention(y, y, y));
    y = encoder(y);
    return bilinear(y, torch::tanh(y));
  }
  nn::Conv2d conv;
  nn::BatchNorm2d batch;
  nn::PReLU prelu;
  nn::ConvTranspose2d up;
  nn::GroupNorm group;
  nn::GRU gru;
  nn::MultiheadAttention attention;
  nn::TransformerEncoderLayer encoder;
  nn::Bilinear bilinear;
};
TORCH_MODULE(Zoo);

}  // namespace fsdp::test
