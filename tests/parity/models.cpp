// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/models.h"

#include <torch/torch.h>

#include "tests/parity/public/llama.h"
#include "tests/parity/public/pixelsnail.h"
#include "tests/parity/public/resnet.h"
#include "tests/parity/public/unet.h"
#include "tests/parity/public/vit.h"
#include "tests/parity/stacks.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The same as in models.py.
constexpr std::int64_t kVocabulary = 53;
constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kBlocks = 2;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kContext = 9;

nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}));
}

nn::Conv2d convolution(std::int64_t channels_in, std::int64_t channels_out, std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(channels_in, channels_out, 3).stride(stride).padding(1).bias(false));
}

}  // namespace

BlockImpl::BlockImpl(std::int64_t width, std::int64_t head_count)
    : heads(head_count),
      ln1(register_module("ln1", layer_norm(width))),
      ln2(nullptr),
      qkv(register_module("qkv", nn::Linear(width, 3 * width))),
      proj(register_module("proj", nn::Linear(width, width))),
      up(nullptr),
      down(nullptr) {
  ln2 = register_module("ln2", layer_norm(width));
  up = register_module("up", nn::Linear(width, 4 * width));
  down = register_module("down", nn::Linear(4 * width, width));
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const auto batch = x.size(0);
  const auto length = x.size(1);
  const auto width = x.size(2);
  const auto thirds = qkv(ln1(x)).chunk(3, -1);
  const auto split = [&](const at::Tensor& t) {
    return t.view({batch, length, heads, width / heads}).transpose(1, 2);
  };
  const at::Tensor seen = at::scaled_dot_product_attention(
      split(thirds[0]), split(thirds[1]), split(thirds[2]), {}, 0.0, /*is_causal=*/true);
  const at::Tensor y = x + proj(seen.transpose(1, 2).reshape({batch, length, width}));
  return y + down(torch::gelu(up(ln2(y))));
}

TiedHeadImpl::TiedHeadImpl(const at::Tensor& shared)
    : weight(register_parameter("weight", shared)) {}

at::Tensor TiedHeadImpl::forward(const at::Tensor& x) {
  return nn::functional::linear(x, weight);
}

GPTImpl::GPTImpl(bool tied)
    : emb_(register_module("emb", nn::Embedding(kVocabulary, kWidth))),
      pos_(register_module("pos", nn::Embedding(kContext, kWidth))),
      blocks_(register_module("blocks", nn::ModuleList())),
      ln_(nullptr) {
  for (std::int64_t i = 0; i < kBlocks; ++i) blocks_->push_back(Block(kWidth, kHeads));
  ln_ = register_module("ln", layer_norm(kWidth));
  if (tied) {
    tied_head_ = register_module("head", TiedHead(emb_->weight));
  } else {
    head_ = register_module("head", nn::Linear(nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }
}

at::Tensor GPTImpl::forward(const at::Tensor& x) {
  at::Tensor y = emb_(x) + pos_(torch::arange(x.size(1), x.options().dtype(at::kLong)));
  for (const auto& module : *blocks_) {
    Block block(std::dynamic_pointer_cast<BlockImpl>(module));
    y = call(block, y);
  }
  y = ln_(y);
  return head_.is_empty() ? tied_head_(y) : head_(y);
}

RecurrentImpl::RecurrentImpl()
    : emb_(register_module("emb", nn::Embedding(kVocabulary, 10))), lstm_(nullptr), head_(nullptr) {
  head_ = register_module("head", nn::Linear(22, kVocabulary));
  lstm_ = register_module(
      "lstm",
      nn::LSTM(nn::LSTMOptions(10, 11).num_layers(2).bidirectional(true).batch_first(true)));
}

at::Tensor RecurrentImpl::forward(const at::Tensor& x) {
  return head_(std::get<0>(lstm_(emb_(x))));
}

StageImpl::StageImpl(std::int64_t channels_in, std::int64_t channels_out, std::int64_t stride)
    : conv(register_module("conv", convolution(channels_in, channels_out, stride))),
      bn(register_module("bn", nn::BatchNorm2d(channels_out))) {}

at::Tensor StageImpl::forward(const at::Tensor& x) {
  return torch::relu(bn(conv(x)));
}

ConvolutionalImpl::ConvolutionalImpl()
    : stages_(register_module("stages", nn::ModuleList(Stage(3, 5, 1), Stage(5, 7, 2)))),
      head_(register_module("head", nn::Linear(7, 6))),
      shift_(register_buffer("shift", torch::tensor({0.1F, -0.2F, 0.3F}).view({3, 1, 1}))) {}

at::Tensor ConvolutionalImpl::forward(const at::Tensor& x) {
  at::Tensor y = x + shift_.to(x.scalar_type());
  for (const auto& stage : *stages_) y = stage->as<StageImpl>()->forward(y);
  return head_(y.mean({2, 3}));
}

LayerImpl::LayerImpl(std::int64_t width_in, std::int64_t width_out)
    : lin(register_module("lin", nn::Linear(width_in, width_out))),
      gain(register_parameter("gain", torch::ones({1}))) {}

at::Tensor LayerImpl::forward(const at::Tensor& x) {
  return torch::tanh(lin(x)) * gain;
}

OddImpl::OddImpl()
    : layers_(register_module("layers", nn::ModuleList(Layer(5, 7), Layer(7, 1), Layer(1, 3)))),
      shift_(register_parameter("shift", torch::zeros({2, 3}))),
      out_(register_module("out", nn::Linear(3, 6))) {}

at::Tensor OddImpl::forward(const at::Tensor& x) {
  at::Tensor y = x;
  for (const auto& layer : *layers_) y = layer->as<LayerImpl>()->forward(y);
  return out_(y + shift_.sum(0));
}

UnusedImpl::UnusedImpl()
    : layers_(register_module("layers", nn::ModuleList(Layer(5, 8), Layer(8, 8), Layer(8, 9)))),
      spare_(register_parameter("spare", torch::ones({4, 3}))),
      out_(register_module("out", nn::Linear(9, 6))) {}

at::Tensor UnusedImpl::forward(const at::Tensor& x) {
  const at::Tensor y = layers_[0]->as<LayerImpl>()->forward(x);
  return out_(layers_[2]->as<LayerImpl>()->forward(y));
}

std::shared_ptr<ParityModel> make_model(const std::string& name) {
  if (name == "gpt") return std::make_shared<GPTImpl>(false);
  if (name == "tied") return std::make_shared<GPTImpl>(true);
  if (name == "lstm") return std::make_shared<RecurrentImpl>();
  if (name == "conv") return std::make_shared<ConvolutionalImpl>();
  if (name == "odd") return std::make_shared<OddImpl>();
  if (name == "stacks") return std::make_shared<StacksImpl>();
  if (name == "unused") return std::make_shared<UnusedImpl>();
  if (name == "resnet") return std::make_shared<ResNetImpl>();
  if (name == "llama") return std::make_shared<LlamaImpl>();
  if (name == "vit") return std::make_shared<ViTImpl>();
  if (name == "unet") return std::make_shared<UNetImpl>();
  if (name == "pixelsnail") return std::make_shared<PixelSNAILImpl>();
  TORCH_CHECK(false, "no parity model is called ", name);
}

bool is_unit(const torch::nn::Module& module) {
  return module.as<BlockImpl>() != nullptr || module.as<nn::LSTMImpl>() != nullptr ||
         module.as<StageImpl>() != nullptr || module.as<LayerImpl>() != nullptr ||
         module.as<ExpertsImpl>() != nullptr || module.as<BasicBlockImpl>() != nullptr ||
         module.as<TransformerBlockImpl>() != nullptr || module.as<EncoderBlockImpl>() != nullptr ||
         module.as<DoubleConvImpl>() != nullptr || module.as<GatedResBlockImpl>() != nullptr;
}

}  // namespace fsdp::test
