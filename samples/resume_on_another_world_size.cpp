// SPDX-License-Identifier: Apache-2.0
// Resumes a run where it stopped, on any number of ranks:
//
//   torchrun --no-python --nproc-per-node 2 resume_on_another_world_size run
//   torchrun --no-python --nproc-per-node 3 resume_on_another_world_size run
//
// The second command reads the checkpoint of two ranks and continues: its first loss is the last
// loss of the first command.  "--device cuda" trains on GPUs.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "samples/device_option.h"

constexpr int kSteps = 20;

void train(const std::filesystem::path& folder, const std::string& device) {
  fsdp::ProcessGroupOptions ranks;
  ranks.device_id = device_of_option(device);
  const auto group = fsdp::init_process_group(ranks);
  torch::nn::Sequential model(torch::nn::Linear(7, 50), torch::nn::Tanh(),
                              torch::nn::Linear(50, 1));
  fsdp::FsdpOptions options;
  options.process_group = group;
  options.auto_wrap_policy = fsdp::module_wrap_policy<torch::nn::Linear>();
  options.sync_module_states = true;  // every rank takes rank 0's weights
  auto sharded = fsdp::FullyShardedDataParallel<torch::nn::Sequential>(model, options);
  fsdp::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));

  // The state that training continues from.  The caller need not know which ranks hold which rows.
  fsdp::TrainingState state;
  state.model = &sharded;
  state.optimizers = {&optimizer};
  std::int64_t step = 0;
  if (std::filesystem::exists(folder)) {
    fsdp::load(folder, state);
    step = static_cast<std::int64_t>(state.extra.at("global_step").number());
  }

  // The same 60 rows whatever the world size; each rank learns from its share.
  const at::Tensor x = torch::linspace(-3, 3, 60 * 7, group->device()).view({60, 7});
  const at::Tensor y = x.sin().sum(1, /*keepdim=*/true);
  const auto loss_of_all = [&] {
    const torch::NoGradGuard no_grad;
    return torch::mse_loss(sharded.forward(x), y).item<float>();
  };
  const auto say = [&] {
    const float loss = loss_of_all();  // collective: every rank computes it, one prints it
    if (group->rank() == 0)
      std::cout << group->size() << " ranks, step " << step << ", loss " << loss << std::endl;
  };
  say();
  for (const std::int64_t last = step + kSteps; step < last; ++step) {
    const auto mine = torch::arange(group->rank(), 60, group->size(), group->device());
    optimizer.zero_grad();
    torch::mse_loss(sharded.forward(x.index_select(0, mine)), y.index_select(0, mine)).backward();
    optimizer.step();
  }
  say();

  state.extra["global_step"] = step;
  fsdp::SaveOptions replace;
  replace.overwrite = true;
  fsdp::save(folder, state, replace);
}

int main(int argc, char** argv) {
  try {
    const std::string device = take_device_option(argc, argv);
    train(argc > 1 ? argv[1] : "run", device);
  } catch (const std::invalid_argument& error) {
    std::cerr << "resume_on_another_world_size: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "resume_on_another_world_size: " << error.what() << '\n';
    return 1;
  }
}
