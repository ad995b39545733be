// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/optim/adamw.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/state/optimizer_schema.h"

namespace fsdp::optim {
using namespace internal;
namespace {

// The arguments of one call of the kernel.
struct Batch {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;
  std::vector<at::Tensor> steps;
  // The kernel only reads the counts, so parameters that the host counts share a tensor of the
  // same count.
  std::map<std::int64_t, at::Tensor> step_of_count;
  std::vector<at::Tensor> device_steps;  // to be incremented, also for parameters without elements
};

// A state whose steps the device counts.
class DeviceCounted final : public torch::optim::AdamWParamState, public HasDeviceStep {
 public:
  DeviceCounted(const torch::optim::AdamWParamState& state, const at::Tensor& parameter)
      : AdamWParamState(state),
        HasDeviceStep(at::full({}, step(), parameter.options().dtype(at::kFloat))) {}

  std::unique_ptr<OptimizerParamState> clone() const override {
    return std::make_unique<DeviceCounted>(*this);
  }
};

using DeviceAndDtype = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>;

void check(const at::Tensor& parameter) {
  const StandIn* const stand_in = stand_in_of(parameter.grad());
  FSDP_CHECK(stand_in == nullptr, refusal(*stand_in, "AdamW takes"));
  FSDP_CHECK(parameter.is_floating_point(), "AdamW: expected floating-point parameters, found ",
             parameter.scalar_type(), ": use torch::optim::AdamW");
  FSDP_CHECK(parameter.is_non_overlapping_and_dense(),
             "AdamW: expected parameters that are dense in memory, found sizes ", parameter.sizes(),
             " with strides ", parameter.strides(), ": use torch::optim::AdamW");
  FSDP_CHECK(parameter.grad().layout() == at::kStrided, "AdamW: expected dense gradients, found ",
             parameter.grad().layout(), ": AdamW does not support sparse gradients");
}

// Returns the gradient in the memory order of the parameter, as the kernel reads it.
at::Tensor matched_grad(const at::Tensor& parameter) {
  const auto& grad = parameter.grad();
  if (grad.scalar_type() == parameter.scalar_type() && grad.strides() == parameter.strides()) {
    return grad;
  }
  return at::empty_like(parameter).copy_(grad);
}

}  // namespace

AdamW& AdamW::capturable(bool on) {
  capturable_ = on;
  if (on) return *this;
  lr_on_device(false);
  refresh_steps();
  for (auto& [parameter, state] : state_) {
    if (dynamic_cast<const DeviceCounted*>(state.get()) == nullptr) continue;
    state = std::make_unique<torch::optim::AdamWParamState>(
        static_cast<const torch::optim::AdamWParamState&>(*state));
  }
  return *this;
}

AdamW& AdamW::lr_on_device(bool on) {
  FSDP_CHECK(capturable_ || !on, "AdamW: expected capturable() before lr_on_device()");
  lr_on_device_ = on;
  device_lrs_.clear();
  return *this;
}

void AdamW::upload_lr() {
  const at::NoGradGuard no_grad;
  for (auto& [key, lr] : device_lrs_) {
    lr.value = param_groups_.at(std::get<0>(key)).options().get_lr();
    lr.tensor.fill_(lr.value);
  }
}

const at::Tensor& AdamW::device_lr(std::size_t group, c10::Device device) {
  const double wanted = param_groups_[group].options().get_lr();
  DeviceLr& lr = device_lrs_[{group, device.type(), device.index()}];
  if (!lr.tensor.defined())
    lr = {at::full({}, wanted, at::TensorOptions().device(device).dtype(at::kFloat)), wanted};
  FSDP_CHECK(lr.value == wanted, "AdamW: the learning rate of group ", group, " is ", wanted,
             ", but ", lr.value, " on the device: call upload_lr()");
  return lr.tensor;
}

void AdamW::refresh_steps() const {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<DeviceCounted*>> by_device;
  for (const auto& [parameter, state] : state_) {
    auto* const counted = dynamic_cast<DeviceCounted*>(state.get());
    if (counted == nullptr) continue;
    const c10::Device device = counted->device_step.device();
    by_device[{device.type(), device.index()}].push_back(counted);
  }
  for (const auto& [device, states] : by_device) {
    std::vector<at::Tensor> steps;
    for (const DeviceCounted* const state : states) steps.push_back(state->device_step);
    const at::Tensor counts = at::stack(steps).cpu();
    const float* count = counts.const_data_ptr<float>();
    for (DeviceCounted* const state : states) state->step(static_cast<std::int64_t>(*count++));
  }
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  refresh_steps();
  torch::optim::AdamW::save(archive);
}

void AdamW::scale_next_step(at::Tensor grad_scale, at::Tensor found_inf) {
  grad_scale_ = std::move(grad_scale);
  found_inf_ = std::move(found_inf);
}

at::Tensor AdamW::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  const auto grad_scale = std::exchange(grad_scale_, at::Tensor());
  const auto found_inf = std::exchange(found_inf_, at::Tensor());
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode record(true);
    loss = closure();
  }
  if (!capturable_ && found_inf.defined() && found_inf.item<float>() != 0) return loss;
  for (std::size_t group = 0; group < param_groups_.size(); ++group)
    step_group(group, grad_scale, capturable_ ? found_inf : at::Tensor());
  return loss;
}

void AdamW::step_group(std::size_t number, const at::Tensor& grad_scale,
                       const at::Tensor& found_inf) {
  auto& group = param_groups_[number];
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
  std::map<DeviceAndDtype, Batch> batches;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    check(parameter);
    auto& state = state_of(parameter, options.amsgrad());
    const auto device = parameter.device();
    auto& batch = batches[{device.type(), device.index(), parameter.scalar_type()}];
    const auto* const counted = dynamic_cast<const DeviceCounted*>(&state);
    if (counted != nullptr) {
      batch.device_steps.push_back(counted->device_step);
    } else {
      state.step(state.step() + 1);
    }
    // A rank may have no rows of a parameter.
    if (parameter.numel() == 0) continue;
    batch.parameters.push_back(parameter);
    batch.grads.push_back(matched_grad(parameter));
    batch.exp_avgs.push_back(state.exp_avg());
    batch.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (options.amsgrad()) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
    if (counted != nullptr) {
      batch.steps.push_back(counted->device_step);
      continue;
    }
    auto& step = batch.step_of_count[state.step()];
    if (!step.defined()) step = at::full({}, state.step(), parameter.options().dtype(at::kFloat));
    batch.steps.push_back(step);
  }
  const auto [beta1, beta2] = options.betas();
  for (auto& [key, batch] : batches) {
    const c10::Device device(std::get<0>(key), std::get<1>(key));
    std::optional<at::Tensor> scale;
    std::optional<at::Tensor> skip;  // 0 or 1
    if (grad_scale.defined()) scale = grad_scale.to(device);
    if (found_inf.defined()) skip = found_inf.to(device).sign().view(at::IntArrayRef{});
    if (!batch.device_steps.empty()) at::_foreach_add_(batch.device_steps, 1);
    const auto run = [&, beta1 = beta1, beta2 = beta2](const auto& lr) {
      at::_fused_adamw_(batch.parameters, batch.grads, batch.exp_avgs, batch.exp_avg_sqs,
                        batch.max_exp_avg_sqs, batch.steps, lr, beta1, beta2,
                        options.weight_decay(), options.eps(), options.amsgrad(),
                        /*maximize=*/false, scale, skip);
    };
    if (batch.parameters.empty()) {
      // Only the steps are counted.
    } else if (lr_on_device_) {
      run(device_lr(number, device));
    } else {
      run(options.lr());
    }
    // If the kernel skipped this step, takes the count back.
    if (skip && !batch.device_steps.empty())
      at::_foreach_sub_(batch.device_steps,
                        std::vector<at::Tensor>(batch.device_steps.size(), *skip));
    // The kernel writes lists of tensors without moving their versions.  Graphs that saved a
    // parameter must notice that it changed.
    for (const auto& parameter : batch.parameters) parameter.unsafeGetTensorImpl()->bump_version();
  }
}

torch::optim::AdamWParamState& AdamW::state_of(const at::Tensor& parameter, bool amsgrad) {
  auto& entry = state_[parameter.unsafeGetTensorImpl()];
  if (entry == nullptr) {
    auto fresh = std::make_unique<torch::optim::AdamWParamState>();
    fresh->exp_avg(at::zeros_like(parameter));
    fresh->exp_avg_sq(at::zeros_like(parameter));
    entry = std::move(fresh);
  }
  if (capturable_ && dynamic_cast<const DeviceCounted*>(entry.get()) == nullptr) {
    entry = std::make_unique<DeviceCounted>(
        static_cast<const torch::optim::AdamWParamState&>(*entry), parameter);
  }
  auto& state = static_cast<torch::optim::AdamWParamState&>(*entry);
  if (amsgrad && !state.max_exp_avg_sq().defined()) {
    state.max_exp_avg_sq(at::zeros_like(parameter));
  }
  return state;
}

}  // namespace fsdp::optim
