// SPDX-License-Identifier: Apache-2.0
// Shows which modules become units, the sets of parameters that are gathered and resharded
// together: one GPT under each policy, a model that marks its own, and one built without memory.
//
//   wrap_policies
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/memory_estimate.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/process_group.h"
#include "libfsdp/wrap_policy.h"
#include "samples/gpt.h"

void show(const std::string& title, const torch::nn::Module& model,
          const fsdp::WrapPolicy& policy) {
  std::cout << title << ":";
  for (const auto& name : fsdp::unit_names(model, policy)) std::cout << ' ' << name;
  std::cout << '\n';
}

void show_policies() {
  GPT gpt{GPTOptions()};
  show("by type", *gpt, fsdp::module_wrap_policy<Block>());
  show("by several types", *gpt, fsdp::module_wrap_policy<Block, torch::nn::Embedding>());
  show("by size", *gpt, fsdp::size_based_auto_wrap_policy(40'000));
  show("by a function", *gpt, fsdp::custom_policy([](const torch::nn::Module& module) {
         const auto* linear = module.as<torch::nn::Linear>();
         return linear != nullptr && linear->weight.size(0) > 100;
       }));
  show(
      "either", *gpt,
      fsdp::any_of({fsdp::module_wrap_policy<Block>(), fsdp::size_based_auto_wrap_policy(16'000)}));
  show("everything", *gpt, fsdp::always_wrap_policy());
}

// Marks its units while building them.  Outside of an EnableWrap scope the marks have no effect.
struct MarkedImpl : torch::nn::Module {
  MarkedImpl()
      : tower(register_module(
            "tower", fsdp::wrap(torch::nn::Sequential(torch::nn::Linear(32, 32), torch::nn::ReLU(),
                                                      fsdp::wrap(torch::nn::Linear(32, 32)))))),
        head(register_module("head", torch::nn::Linear(32, 4))) {}

  torch::nn::Sequential tower;
  torch::nn::Linear head;
};
TORCH_MODULE(Marked);

void show_manual_wrapping() {
  const fsdp::EnableWrap scope;
  show("marked by hand", *Marked(), fsdp::wrapped_policy());
}

// A model of 1.3 billion parameters without memory, and the memory to train it on each of 8 ranks.
void show_meta_device() {
  const fsdp::MetaDevice meta;
  const GPT large(GPTOptions{50'257, 2048, 24, 16, 1024});
  fsdp::FsdpOptions options;
  options.auto_wrap_policy = fsdp::module_wrap_policy<Block>();
  fsdp::TrainingSetup setup;
  setup.world_size = 8;
  std::cout << '\n';
  fsdp::print_memory_table(std::cout, fsdp::estimate_strategies(*large, options, setup));
}

// Built on the meta device, given memory when it is wrapped: the tree with its units.
void show_tree() {
  fsdp::ProcessGroupOptions alone;
  alone.rank = 0, alone.world_size = 1;
  const GPT small = [] {
    const fsdp::MetaDevice meta;
    return GPT(GPTOptions());
  }();
  fsdp::FsdpOptions options;
  options.process_group = fsdp::init_process_group(alone);
  options.auto_wrap_policy = fsdp::module_wrap_policy<Block>();
  const fsdp::FullyShardedDataParallel<GPT> sharded(small, options);
  std::cout << '\n' << sharded;
}

int main() {
  show_policies();
  show_manual_wrapping();
  show_meta_device();
  show_tree();
}
