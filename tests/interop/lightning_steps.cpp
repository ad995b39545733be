// SPDX-License-Identifier: Apache-2.0
// One rank of a training run under fsdp::Strategy, for check_strategy.py, whose Lightning module
// has the same parameters, data and optimizer:
//   lightning_steps train PATH full|sharded    three steps, a checkpoint at PATH, three more
//   lightning_steps resume PATH full|sharded   the checkpoint at PATH, three steps
// Rank 0 prints the loss of each of the last three steps, exactly.
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include <torch/torch.h>

#include "libfsdp/strategy.h"

namespace {

constexpr int kIn = 6, kWidth = 7, kBatch = 5, kSteps = 3;

struct ModuleImpl : torch::nn::Module {
  ModuleImpl()
      : net(register_module("net",
                            torch::nn::Sequential(torch::nn::Linear(kIn, kWidth), torch::nn::Tanh(),
                                                  torch::nn::Linear(kWidth, kIn)))) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kFloat) + 1).view(parameter.sizes()) /
          2);
    }
  }
  torch::Tensor training_step(const torch::Tensor& batch) {
    return net->forward(batch).square().mean();
  }
  torch::nn::Sequential net;
};
TORCH_MODULE(Module);

torch::Tensor batch_of(int step) {
  return torch::cos(torch::arange(kBatch * kIn, torch::kFloat) + step).view({kBatch, kIn});
}

void train(fsdp::Strategy<Module>& strategy, int begin, bool report) {
  for (int step = begin; step < begin + kSteps; ++step) {
    strategy.optimizers()[0]->zero_grad();
    const auto loss = strategy.training_step(batch_of(step));
    loss.backward();
    strategy.optimizers()[0]->step();
    if (report && strategy.is_global_zero()) std::printf("%.9g\n", loss.item<double>());
  }
}

void run(const std::string& mode, const std::string& path, const std::string& type) {
  fsdp::StrategyOptions options;
  options.fsdp.auto_wrap_policy = fsdp::module_wrap_policy<torch::nn::Linear>();
  options.state_dict_type =
      type == "full" ? fsdp::StateDictType::kFull : fsdp::StateDictType::kSharded;
  fsdp::Strategy<Module> strategy(options);
  strategy.setup_environment();
  strategy.setup(Module(), [](const auto& parameters) {
    return fsdp::Optimizers{
        std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2))};
  });
  if (mode == "train") {
    train(strategy, 0, false);
    strategy.save_checkpoint(strategy.dump_checkpoint({{"epoch", kSteps}, {"global_step", kSteps}}),
                             path);
  } else {
    strategy.load_checkpoint(path);
  }
  train(strategy, kSteps, true);
  strategy.teardown();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4)
    return std::fputs("usage: lightning_steps train|resume PATH full|sharded\n", stderr), 2;
  torch::set_num_threads(1);
  try {
    run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return 0;
}
