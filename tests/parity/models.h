// SPDX-License-Identifier: Apache-2.0
// The models of the parity tests, written for LibTorch; models.py has the same, with the same names
// and the same arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

namespace fsdp::test {

// Takes one batch and returns logits, the classes last.
class ParityModel : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, std::int64_t head_count);
  at::Tensor forward(const at::Tensor& x);

  std::int64_t heads;
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, up, down;
};
TORCH_MODULE(Block);

// A linear layer without bias that shares another module's weight: one tensor under two names.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& shared);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

class GPTImpl : public ParityModel {
 public:
  explicit GPTImpl(bool tied);
  at::Tensor forward(const at::Tensor& x) override;

  // Calls a block; a test may recompute it in backward.
  std::function<at::Tensor(Block&, const at::Tensor&)> call =
      [](Block& block, const at::Tensor& x) { return block(x); };

 private:
  torch::nn::Embedding emb_, pos_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm ln_;
  torch::nn::Linear head_{nullptr};
  TiedHead tied_head_{nullptr};
};

class RecurrentImpl : public ParityModel {
 public:
  RecurrentImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::Embedding emb_;
  torch::nn::LSTM lstm_;
  torch::nn::Linear head_;
};

struct StageImpl : torch::nn::Module {
  StageImpl(std::int64_t channels_in, std::int64_t channels_out, std::int64_t stride);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d bn;
};
TORCH_MODULE(Stage);

class ConvolutionalImpl : public ParityModel {
 public:
  ConvolutionalImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::ModuleList stages_;
  torch::nn::Linear head_;
  at::Tensor shift_;
};

struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t width_in, std::int64_t width_out);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear lin;
  at::Tensor gain;
};
TORCH_MODULE(Layer);

// Parameters with fewer rows than ranks.
class OddImpl : public ParityModel {
 public:
  OddImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::ModuleList layers_;
  at::Tensor shift_;
  torch::nn::Linear out_;
};

// One unit that forward never calls, and one unused parameter in a unit that is called.
class UnusedImpl : public ParityModel {
 public:
  UnusedImpl();
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::ModuleList layers_;
  at::Tensor spare_;
  torch::nn::Linear out_;
};

// Makes the model of that name in models.py or public_models.py.
std::shared_ptr<ParityModel> make_model(const std::string& name);

// Returns whether models.py counts modules of this type among the units of a model.
bool is_unit(const torch::nn::Module& module);

}  // namespace fsdp::test
