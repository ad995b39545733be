// SPDX-License-Identifier: Apache-2.0
// AdamW on ATen's fused kernel: one pass over parameters, gradients and state for each parameter
// group, device and dtype, where torch::optim::AdamW makes a dozen for each parameter.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

namespace fsdp::optim {

// Options, parameter groups, state and archives are those of torch::optim::AdamW; each can continue
// from the other's state.  Results are those of PyTorch's AdamW(fused=True), and differ from
// torch::optim::AdamW by rounding: within 1e-6 of a float32 parameter's size after ten steps.
// Parameters without a gradient are left alone.
// Throws in step(): c10::Error for sparse gradients, and for parameters without a floating-point
// dtype or not dense in memory.
//
// Note [steps in graphs]
// A device graph (CUDA's stream capture) repeats kernels with the host's numbers at the capture.
// The steps of a capturable optimizer stay right when they are repeated:
//
//   optimizer.capturable();
//   step(); step();                 // eager: makes the state, on the stream of the capture
//   // capture a step, then as often as you like:
//   optimizer.upload_lr();          // if lr_on_device(), after a change of the learning rate
//   // replay
//
// Steps are counted on the parameters' devices.  No step after the first waits on the host, or
// allocates memory apart from a gradient that has another dtype or layout than its parameter.
// Results are the same, bit by bit.  Loading a state replaces its tensors: capture again.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  // See Note [steps in graphs].  May be called between any two steps; turning it off waits for the
  // device.
  AdamW& capturable(bool on = true);
  bool is_capturable() const noexcept { return capturable_; }

  // Makes the kernel read the learning rate of each group from its device, as a float32: the result
  // is that of the options' rate rounded to float32.  Otherwise a graph repeats the rate of its
  // capture.
  // Requires: capturable().
  AdamW& lr_on_device(bool on = true);
  // Queues a copy of the options' learning rates to the devices, on the current streams, for steps
  // and replays that are queued later.  Does not wait.  Until then step() throws c10::Error if a
  // rate has changed.
  void upload_lr();

  // Sets AdamWParamState::step() of all parameters to the counts on the devices, and waits for
  // them.  Only readers of that member need it: save() and libfsdp's state dicts do it themselves.
  void refresh_steps() const;

  // For loss scaling without a separate pass.  The next step() divides gradients by `grad_scale`
  // in place, or does nothing if `found_inf` is not zero.  Each is one float32 element, or
  // undefined.  A capturable optimizer reads both on the device.
  void scale_next_step(at::Tensor grad_scale, at::Tensor found_inf);

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;

 private:
  struct DeviceLr {
    at::Tensor tensor;
    double value = 0;  // the last rate uploaded
  };
  using GroupAndDevice = std::tuple<std::size_t, c10::DeviceType, c10::DeviceIndex>;

  void step_group(std::size_t number, const at::Tensor& grad_scale, const at::Tensor& found_inf);
  const at::Tensor& device_lr(std::size_t group, c10::Device device);
  torch::optim::AdamWParamState& state_of(const at::Tensor& parameter, bool amsgrad);

  bool capturable_ = false;
  bool lr_on_device_ = false;
  std::map<GroupAndDevice, DeviceLr> device_lrs_;
  at::Tensor grad_scale_;
  at::Tensor found_inf_;
};

}  // namespace fsdp::optim
