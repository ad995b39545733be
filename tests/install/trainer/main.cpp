// SPDX-License-Identifier: Apache-2.0
// Trains a linear layer for one step on one rank; prints its weight.
#include <libfsdp/fully_sharded.h>

#include <iostream>

#include <torch/torch.h>

int main() {
  fsdp::ProcessGroupOptions ranks;
  ranks.rank = 0;
  ranks.world_size = 1;
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::constant_(layer->weight, 2.0);
  fsdp::FsdpOptions options;
  options.process_group = fsdp::init_process_group(ranks);
  fsdp::FullyShardedDataParallel<torch::nn::Linear> sharded(layer, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.5);
  sharded.forward(torch::full({1, 1}, 3.0)).sum().backward();  // the gradient is 3
  optimizer.step();
  std::cout << sharded.parameters()[0].sum().item<float>() << '\n';
}
