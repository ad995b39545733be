// SPDX-License-Identifier: Apache-2.0
// A recurrent language model with its own loop: it reads a text continuously from step to step,
// gradients do not flow back beyond a step, and the head has the embedding's weight.
#pragma once

#include <memory>
#include <tuple>

#include "tests/parity/models.h"
#include "tests/parity/subject.h"

namespace fsdp::test {

struct RNNModelImpl : torch::nn::Module {
  using Hidden = std::tuple<at::Tensor, at::Tensor>;

  RNNModelImpl(std::int64_t vocabulary, std::int64_t width, std::int64_t layer_count);
  // x [T, B]: returns log probabilities [T * B, vocabulary], and the state after the last place.
  std::tuple<at::Tensor, Hidden> forward(const at::Tensor& x, const Hidden& hidden);
  Hidden init_hidden(std::int64_t batch) const;

  torch::nn::Embedding encoder;
  torch::nn::LSTM rnn;
  torch::nn::Linear decoder;
};
TORCH_MODULE(RNNModel);

// Collective.
Training train_language_model(const ParityCase& wanted, const ParityInputs& inputs,
                              const std::shared_ptr<ProcessGroup>& group);

}  // namespace fsdp::test
