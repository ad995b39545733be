// SPDX-License-Identifier: Apache-2.0
// load_training <from> <to> <ranks>: loads training states of the model of tests/interop/models.py,
// sharded over ranks that are threads, and saves them as one file.
#include <cstdlib>
#include <iostream>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "tests/support/spawn_ranks.h"

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl(int width, int hidden) {
    register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    register_module("up", nn::Linear(width, hidden));
    register_module("down", nn::Linear(nn::LinearOptions(hidden, width).bias(false)));
  }
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    register_parameter("scale", torch::zeros({1}));
    register_buffer("seen", torch::ones({3}, torch::kLong));
    register_buffer("mean", torch::ones({}));
    register_module("inp", nn::Linear(6, 7));
    nn::ModuleList blocks;
    for (int i = 0; i < 2; ++i) blocks->push_back(Block(7, 13));
    register_module("blocks", blocks);
    register_module("one", nn::Linear(7, 1));
    register_module("out", nn::Linear(nn::LinearOptions(7, 6).bias(false)));
  }
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  at::set_num_threads(1);
  try {
    fsdp::test::spawn_ranks(std::atoi(argv[3]), [&](const auto& group) {
      fsdp::FsdpOptions options;
      options.process_group = group;
      options.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>();
      Net net;
      fsdp::ShardedModule sharded(net.ptr(), options);
      torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.5));
      fsdp::TrainingState state;
      state.model = &sharded;
      state.optimizers = {&optimizer};
      const auto report = load(argv[1], state);
      TORCH_CHECK(report.same_keys() && report.cast.empty(), report.missing, report.unexpected,
                  report.cast);
      save_file(argv[2], state);
    });
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
