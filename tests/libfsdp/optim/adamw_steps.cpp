// SPDX-License-Identifier: Apache-2.0
// Makes steps of fsdp::optim::AdamW on parameters and gradients that adamw_steps.py can make too;
// prints each parameter's bits after each step.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <vector>

#include <torch/torch.h>

#include "libfsdp/optim/adamw.h"

namespace {

// Values that are exact in any float format of at least eight bits of mantissa.
at::Tensor values(std::int64_t numel, std::int64_t seed, at::ScalarType dtype) {
  return ((torch::arange(numel) * 7919 + seed * 104729) % 255 - 127)
      .to(torch::kDouble)
      .div(64)
      .to(dtype);
}

}  // namespace

int main() {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    for (const bool amsgrad : {false, true}) {
      std::vector<at::Tensor> parameters;
      for (const std::int64_t numel : {1, 7, 64, 1003}) {
        parameters.push_back(values(numel, numel, dtype));
      }
      fsdp::optim::AdamW optimizer(
          parameters,
          torch::optim::AdamWOptions(0.01).weight_decay(0.1).betas({0.8, 0.95}).amsgrad(amsgrad));
      for (int step = 1; step <= 10; ++step) {
        for (auto& parameter : parameters) {
          parameter.mutable_grad() = values(parameter.numel(), 1000 * step, dtype);
        }
        optimizer.step();
        for (const auto& parameter : parameters) {
          const auto exact = parameter.to(torch::kDouble);
          for (std::int64_t i = 0; i < exact.numel(); ++i) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, exact.const_data_ptr<double>() + i, sizeof(bits));
            std::cout << std::hex << bits << ' ';
          }
        }
        std::cout << '\n';
      }
    }
  }
}
