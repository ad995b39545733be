// SPDX-License-Identifier: Apache-2.0
// AdamW on ATen's fused kernel: one pass over parameters, gradients and state for each parameter
// group, device and dtype, where torch::optim::AdamW makes a dozen for each parameter.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

namespace fsdp::optim {

// Options, parameter groups, state and archives are those of torch::optim::AdamW; each can continue
// from the other's state.  Results are those of PyTorch's AdamW(fused=True), and differ from
// torch::optim::AdamW by rounding: within 1e-6 of a float32 parameter's size after ten steps.
// Parameters without a gradient are left alone.
// Throws in step(): c10::Error for sparse gradients, and for parameters without a floating-point
// dtype or not dense in memory.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  // For loss scaling without a separate pass.  The next step() divides gradients by `grad_scale`
  // in place, or does nothing if `found_inf` is not zero.  Each is one float32 element, or
  // undefined.
  void scale_next_step(at::Tensor grad_scale, at::Tensor found_inf);

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group, const at::Tensor& grad_scale);
  torch::optim::AdamWParamState& state_of(const at::Tensor& parameter, bool amsgrad);

  at::Tensor grad_scale_;
  at::Tensor found_inf_;
};

}  // namespace fsdp::optim
