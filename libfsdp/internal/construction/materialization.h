// SPDX-License-Identifier: Apache-2.0
// Gives the modules of a tree memory and values where they have none, one module after the other.
#pragma once

#include <functional>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace fsdp::internal {

struct Materialization {
  c10::Device device = c10::kCPU;
  // See fsdp::materialize().
  std::function<void(torch::nn::Module&)> param_init_fn;
  std::vector<const torch::nn::Module*> ignored;
  // false: only allocates memory, because values come from elsewhere.  param_init_fn is called all
  // the same, because it may do more.
  bool with_values = true;
  // Called once for each module that is not ignored, when nothing initializes it any more: after
  // the modules below it, and after modules above it that initialize modules below them.
  std::function<void(torch::nn::Module&)> done = [](torch::nn::Module&) {};
  // Returns how many references to a tensor the caller keeps.
  std::function<int(const at::Tensor&)> kept = [](const at::Tensor&) { return 0; };
};

// Throws: what fsdp::materialize() throws.
void run(const Materialization& materialization, torch::nn::Module& root);

}  // namespace fsdp::internal
