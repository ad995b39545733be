// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/training.h"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libfsdp/optim/adamw.h"
#include "tests/parity/public/dcgan.h"
#include "tests/parity/public/language_model.h"

namespace fsdp::test {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const ParityCase& wanted,
                                                        std::vector<at::Tensor> parameters) {
  if (wanted.optimizer == "sgd") {
    // The test's hook doubles gradients.
    const double rate = wanted.comm_hook ? 0.025 : 0.05;
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(rate).momentum(0.9));
  }
  if (wanted.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(
        std::move(parameters), torch::optim::AdamOptions(3e-3).betas({0.9, 0.95}).eps(1e-8));
  }
  const auto options =
      torch::optim::AdamWOptions(3e-3).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.01);
  // See reference.py: uses one kernel for both languages where a rounding may decide.
  if (!wanted.mixed.empty()) {
    return std::make_unique<optim::AdamW>(std::move(parameters), options);
  }
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), options);
}

// The loop of reference.py for one rank, in parts between which ranks may communicate.
class Loop {
 public:
  Loop(const ParityCase& wanted, const ParityInputs& inputs, int rank, Subject& subject)
      : case_(wanted),
        x_(inputs.tensors.at("x").select(1, rank)),
        y_(inputs.tensors.at("y").select(1, rank)),
        subject_(subject),
        optimizer_(make_optimizer(wanted, subject.parameters())) {}

  void backward(std::int64_t step) {
    auto& losses = training_.losses.emplace_back();
    for (std::int64_t micro = 0; micro < case_.micro; ++micro) {
      subject_.set_requires_gradient_sync(!case_.no_sync || micro + 1 == case_.micro);
      at::Tensor sum;
      for (std::int64_t i = 0; i < case_.forwards; ++i) {
        const at::Tensor part = loss(step, micro + i);
        losses.push_back(part.item<float>());
        sum = sum.defined() ? sum + part : part;
      }
      (sum / static_cast<double>(case_.micro)).backward();
    }
  }

  void update(std::int64_t step) {
    if (case_.evaluate_early) evaluate(step);
    if (case_.clip > 0) {
      const double p = case_.norm > 0 ? case_.norm : std::numeric_limits<double>::infinity();
      training_.norms.push_back(subject_.clip_grad_norm(case_.clip, p).item<double>());
    }
    optimizer_->step();
    optimizer_->zero_grad();
    if (case_.evaluate) evaluate(step);
  }

  Training finish() {
    training_.tensors = subject_.tensors();
    training_.units = subject_.units();
    return std::move(training_);
  }

 private:
  at::Tensor loss(std::int64_t step, std::int64_t micro) {
    const at::Tensor logits = subject_.forward(x_[step][micro]);
    return torch::nn::functional::cross_entropy(logits.to(at::kFloat).flatten(0, -2),
                                                y_[step][micro].flatten());
  }

  void evaluate(std::int64_t step) {
    const torch::NoGradGuard no_grad;
    training_.evaluations.push_back(loss(step, 2).item<float>());
  }

  const ParityCase& case_;
  at::Tensor x_;  // [step, micro batch, batch, ...]
  at::Tensor y_;
  Subject& subject_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Training training_;
};

using OwnLoop = Training (*)(const ParityCase&, const ParityInputs&,
                             const std::shared_ptr<ProcessGroup>&);
const std::map<std::string, OwnLoop> kOwnLoops = {{"dcgan", train_dcgan},
                                                  {"rnnlm", train_language_model}};

}  // namespace

bool has_own_loop(const std::string& model) {
  return kOwnLoops.count(model) != 0;
}

Training train_sharded(const ParityCase& wanted, const ParityInputs& inputs,
                       const std::shared_ptr<ProcessGroup>& group) {
  const auto own = kOwnLoops.find(inputs.model);
  if (own != kOwnLoops.end()) return own->second(wanted, inputs, group);
  const auto subject = sharded_subject(wanted, inputs, group);
  Loop loop(wanted, inputs, group->rank(), *subject);
  for (std::int64_t step = 0; step < inputs.steps; ++step) {
    loop.backward(step);
    loop.update(step);
  }
  return loop.finish();
}

std::vector<Training> train_plain(const ParityCase& wanted, const ParityInputs& inputs, int world) {
  PlainRanks ranks(wanted, inputs, world);
  std::vector<Loop> loops;
  for (int rank = 0; rank < world; ++rank) {
    loops.emplace_back(wanted, inputs, rank, ranks.rank(rank));
  }
  for (std::int64_t step = 0; step < inputs.steps; ++step) {
    for (Loop& loop : loops) loop.backward(step);
    ranks.average_gradients();
    for (Loop& loop : loops) loop.update(step);
  }
  std::vector<Training> trainings;
  for (Loop& loop : loops) trainings.push_back(loop.finish());
  return trainings;
}

}  // namespace fsdp::test
