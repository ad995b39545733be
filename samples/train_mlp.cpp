// SPDX-License-Identifier: Apache-2.0
// The minimum for sharded training: a module, a policy, a loop, a checkpoint.
//
//   torchrun --no-python --nproc-per-node 2 train_mlp mlp-step-100 [--device cuda]
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "samples/device_option.h"

// Any module works; it need not know about ranks.
struct MLPImpl : torch::nn::Module {
  explicit MLPImpl(std::int64_t width)
      : in(register_module("in", torch::nn::Linear(2, width))),
        hidden(register_module("hidden", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, 1))) {}

  at::Tensor forward(const at::Tensor& x) { return out(torch::gelu(hidden(torch::gelu(in(x))))); }

  torch::nn::Linear in, hidden, out;
};
TORCH_MODULE(MLP);

void train(const std::string& folder, const std::string& device) {
  fsdp::ProcessGroupOptions ranks;
  ranks.device_id = device_of_option(device);          // the CPU: Gloo; CUDA: NCCL
  const auto group = fsdp::init_process_group(ranks);  // of torchrun, Open MPI or Slurm
  torch::manual_seed(1);                               // the same weights on every rank
  MLP model(64);

  fsdp::FsdpOptions options;
  options.process_group = group;
  options.auto_wrap_policy = fsdp::module_wrap_policy<torch::nn::Linear>();
  fsdp::FullyShardedDataParallel<MLP> sharded(model, options);
  fsdp::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));

  fsdp::TrainingState state;
  state.model = &sharded;
  state.optimizers = {&optimizer};

  torch::manual_seed(100 + group->rank());  // other data on every rank
  for (int step = 0; step <= 100; ++step) {
    const at::Tensor x = torch::rand({32, 2}) * 4 - 2;
    const at::Tensor y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(sharded.forward(x), y.to(group->device()));
    loss.backward();
    sharded.clip_grad_norm_(1.0);
    optimizer.step();
    if (group->rank() == 0 && step % 20 == 0)
      std::cout << "step " << step << "  loss " << loss.item<float>() << std::endl;
  }

  state.extra["global_step"] = 101;
  fsdp::save(folder, state);  // each rank saves its part; fsdp::load works on any number of ranks
}

int main(int argc, char** argv) {
  try {
    const std::string device = take_device_option(argc, argv);
    if (argc != 2) {
      std::cerr << "usage: train_mlp FOLDER [--device cpu|cuda|cuda:N|auto]\n";
      return 2;
    }
    train(argv[1], device);
  } catch (const std::invalid_argument& error) {
    std::cerr << "train_mlp: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "train_mlp: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
