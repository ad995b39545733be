// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/optim/adamw.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/engine/gradients.h"

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
  // The kernel only reads the counts, so parameters with the same count share a tensor.
  std::map<std::int64_t, at::Tensor> step_of_count;
};

using DeviceAndDtype = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>;

void check(const at::Tensor& parameter) {
  const StandIn* const stand_in = stand_in_of(parameter.grad());
  TORCH_CHECK(stand_in == nullptr, refusal(*stand_in, "AdamW takes"));
  TORCH_CHECK(parameter.is_floating_point(), "AdamW: expected floating-point parameters, found ",
              parameter.scalar_type(), ": use torch::optim::AdamW");
  TORCH_CHECK(parameter.is_non_overlapping_and_dense(),
              "AdamW: expected parameters that are dense in memory, found sizes ",
              parameter.sizes(), " with strides ", parameter.strides(),
              ": use torch::optim::AdamW");
  TORCH_CHECK(parameter.grad().layout() == at::kStrided, "AdamW: expected dense gradients, found ",
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
  if (found_inf.defined() && found_inf.item<float>() != 0) return loss;
  for (auto& group : param_groups_) step_group(group, grad_scale);
  return loss;
}

void AdamW::step_group(torch::optim::OptimizerParamGroup& group, const at::Tensor& grad_scale) {
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
  std::map<DeviceAndDtype, Batch> batches;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    check(parameter);
    auto& state = state_of(parameter, options.amsgrad());
    state.step(state.step() + 1);
    // A rank may have no rows of a parameter.
    if (parameter.numel() == 0) continue;
    const auto device = parameter.device();
    auto& batch = batches[{device.type(), device.index(), parameter.scalar_type()}];
    batch.parameters.push_back(parameter);
    batch.grads.push_back(matched_grad(parameter));
    batch.exp_avgs.push_back(state.exp_avg());
    batch.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (options.amsgrad()) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
    auto& step = batch.step_of_count[state.step()];
    if (!step.defined()) step = at::full({}, state.step(), parameter.options().dtype(at::kFloat));
    batch.steps.push_back(step);
  }
  const auto [beta1, beta2] = options.betas();
  for (auto& [_, batch] : batches) {
    std::optional<at::Tensor> scale;
    if (grad_scale.defined()) scale = grad_scale.to(batch.parameters.front().device());
    at::_fused_adamw_(batch.parameters, batch.grads, batch.exp_avgs, batch.exp_avg_sqs,
                      batch.max_exp_avg_sqs, batch.steps, options.lr(), beta1, beta2,
                      options.weight_decay(), options.eps(), options.amsgrad(),
                      /*maximize=*/false, scale);
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
  auto& state = static_cast<torch::optim::AdamWParamState&>(*entry);
  if (amsgrad && !state.max_exp_avg_sq().defined()) {
    state.max_exp_avg_sq(at::zeros_like(parameter));
  }
  return state;
}

}  // namespace fsdp::optim
