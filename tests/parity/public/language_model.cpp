// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/language_model.h"

#include <torch/torch.h>

#include "tests/parity/case_options.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The same as in own_loops.py.
constexpr std::int64_t kVocabulary = 53;
constexpr std::int64_t kWidth = 12;
constexpr std::int64_t kLayers = 2;
constexpr double kClip = 0.25;
constexpr double kRate = 1;

RNNModelImpl::Hidden repackaged(const RNNModelImpl::Hidden& hidden) {
  return {std::get<0>(hidden).detach(), std::get<1>(hidden).detach()};
}

}  // namespace

RNNModelImpl::RNNModelImpl(std::int64_t vocabulary, std::int64_t width, std::int64_t layer_count)
    : encoder(register_module("encoder", nn::Embedding(vocabulary, width))),
      rnn(register_module("rnn", nn::LSTM(nn::LSTMOptions(width, width).num_layers(layer_count)))),
      decoder(register_module("decoder", nn::Linear(width, vocabulary))) {
  // The parameter that the decoder registered stays as its own.
  decoder->weight = encoder->weight;
}

std::tuple<at::Tensor, RNNModelImpl::Hidden> RNNModelImpl::forward(const at::Tensor& x,
                                                                   const Hidden& hidden) {
  const auto [y, next] = rnn(encoder(x), hidden);
  const at::Tensor logits = decoder(y);
  return {torch::log_softmax(logits.view({-1, logits.size(-1)}), 1), next};
}

RNNModelImpl::Hidden RNNModelImpl::init_hidden(std::int64_t batch) const {
  const auto zeros = [&] {
    return torch::zeros({rnn->options.num_layers(), batch, rnn->options.hidden_size()});
  };
  return {zeros(), zeros()};
}

Training train_language_model(const ParityCase& wanted, const ParityInputs& inputs,
                              const std::shared_ptr<ProcessGroup>& group) {
  RNNModel plain(kVocabulary, kWidth, kLayers);
  for (auto& item : plain->named_modules()) initialize(*item.value(), item.key(), inputs.tensors);
  FullyShardedDataParallel<RNNModel> model(plain, case_options(wanted, group));
  const at::Tensor x = inputs.tensors.at("x").select(1, group->rank()).select(1, 0);
  const at::Tensor y = inputs.tensors.at("y").select(1, group->rank()).select(1, 0);

  Training training;
  auto hidden = model->init_hidden(x.size(-1));
  for (std::int64_t step = 0; step < inputs.steps; ++step) {
    hidden = repackaged(hidden);
    model->zero_grad();
    at::Tensor found;
    std::tie(found, hidden) = model.forward(x[step], hidden);
    const at::Tensor loss = torch::nll_loss(found, y[step].flatten());
    loss.backward();
    training.norms.push_back(model.clip_grad_norm_(kClip).item<double>());
    for (const at::Tensor& parameter : model.parameters()) {
      if (parameter.grad().defined()) parameter.data().add_(parameter.grad(), -kRate);
    }
    training.losses.push_back({loss.item<float>()});
  }
  training.tensors = full_tensors(model);
  training.units = model.unit_names();
  return training;
}

}  // namespace fsdp::test
