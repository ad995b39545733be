// SPDX-License-Identifier: Apache-2.0
// Linear layers, of which each forward takes some, in an order that is set from outside.
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <vector>

#include <torch/torch.h>

namespace fsdp::test {

using Order = std::vector<int>;

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int depth = 6) {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(16, 16));
      order.push_back(i);
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const int i : order) {
      auto& layer = *layers[static_cast<std::size_t>(i)]->as<torch::nn::LinearImpl>();
      if (before) x = before(i, layer, x);
      x = torch::tanh(layer.forward(x));
    }
    if (throws) throw std::runtime_error("the model throws");
    return x;
  }
  torch::nn::ModuleList layers;
  Order order;
  // Called with each layer's number, the layer and its input, which it returns or replaces.
  std::function<torch::Tensor(int, torch::nn::LinearImpl&, const torch::Tensor&)> before;
  bool throws = false;
};
TORCH_MODULE(Stack);

}  // namespace fsdp::test
