// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/shard_tensor.h"

namespace fsdp {
using namespace internal;
namespace {

using DeviceAndDtype = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>;

// Returns the values of a gradient, to be unscaled in place.
at::Tensor gradient_values(const at::Tensor& parameter) {
  auto& grad = parameter.mutable_grad();
  if (!grad.is_sparse()) return grad;
  if (!grad.is_coalesced()) {
    // Coalescing adds rows that occur twice, and the sum may overflow, so do it before the check.
    // There is no such sum in float16.
    const auto dtype = grad.scalar_type();
    grad = dtype == at::kHalf ? grad.to(at::kFloat).coalesce().to(dtype) : grad.coalesce();
  }
  return grad._values();
}

// Multiplies the gradients; returns whether one was not finite.
bool unscale_gradients(torch::optim::Optimizer& optimizer, float inverse_scale) {
  const at::NoGradGuard no_grad;
  std::map<DeviceAndDtype, std::vector<at::Tensor>> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto values = gradient_values(parameter);
      const auto device = values.device();
      gradients[{device.type(), device.index(), values.scalar_type()}].push_back(std::move(values));
    }
  }
  // Launch all kernels first, then wait for their answers.
  std::vector<at::Tensor> found;
  for (const auto& [_, values] : gradients) {
    const auto options = values.front().options().dtype(at::kFloat).layout(at::kStrided);
    found.push_back(at::zeros({1}, options));
    at::_amp_foreach_non_finite_check_and_unscale_(values, found.back(),
                                                   at::full({1}, inverse_scale, options));
  }
  bool any = false;
  for (const auto& flag : found) any = any || flag.item<float>() != 0;
  return any;
}

// Returns the groups over which the optimizer's parameters are sharded and replicated, in the order
// of the parameters.
std::vector<std::shared_ptr<ProcessGroup>> groups_of(const torch::optim::Optimizer& optimizer) {
  std::vector<std::shared_ptr<ProcessGroup>> result;
  const auto add = [&](const std::shared_ptr<ProcessGroup>& group) {
    if (group && std::find(result.begin(), result.end(), group) == result.end())
      result.push_back(group);
  };
  const Engine* last = nullptr;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const Engine* const engine = engine_of(owner_of(parameter));
      if (engine == nullptr || engine == last) continue;
      last = engine;
      const auto& mesh = last->options().device_mesh;
      add(mesh ? mesh->all_ranks() : last->options().process_group);
      if (!mesh) add(last->options().replicate_group);
      const auto& root = last->units().front()->sharding;
      for (const auto& unit : last->units()) {
        if (unit->sharding == root) continue;
        add(unit->sharding->mesh.shard);
        add(unit->sharding->mesh.replicate);
      }
    }
  }
  return result;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(std::move(options)), scale_(static_cast<float>(options_.init_scale)) {
  FSDP_CHECK(options_.growth_factor > 1, "GradScaler: expected a growth_factor above 1, found ",
             options_.growth_factor);
  FSDP_CHECK(options_.backoff_factor < 1, "GradScaler: expected a backoff_factor below 1, found ",
             options_.backoff_factor);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  return loss.mul(static_cast<double>(scale_));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  const auto known = progress_.find(&optimizer);
  FSDP_CHECK(known == progress_.end() || known->second.stage != Stage::kStepped,
             "GradScaler: expected unscale_() before step(), found it after: call update() at the "
             "end of every iteration");
  FSDP_CHECK(known == progress_.end(),
             "GradScaler: expected one unscale_() of an optimizer before update(), found a second");
  // Divided in double, as PyTorch does: a reciprocal in float32 may be off by a rounding.
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(scale_));
  const bool found_here = unscale_gradients(optimizer, inverse);
  progress_[&optimizer] = {Stage::kUnscaled, found_on_any_rank(found_here, optimizer)};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (!progress_.contains(&optimizer)) unscale_(optimizer);
  auto& progress = progress_.at(&optimizer);
  FSDP_CHECK(progress.stage != Stage::kStepped,
             "GradScaler: expected one step() of an optimizer before update(), found a second");
  progress.stage = Stage::kStepped;
  if (!progress.found_inf) optimizer.step();
  return !progress.found_inf;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    scale_ = static_cast<float>(*new_scale);
    progress_.clear();
    return;
  }
  FSDP_CHECK(!progress_.empty(),
             "GradScaler: expected step() or unscale_() before update(), found neither");
  bool found_inf = false;
  for (const auto& [_, progress] : progress_) found_inf = found_inf || progress.found_inf;
  progress_.clear();
  if (found_inf) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    // An infinite scale would stay infinite.
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
}

double GradScaler::get_scale() const noexcept {
  return options_.enabled ? scale_ : 1.0;
}

GradScalerState GradScaler::state() const noexcept {
  return {.scale = get_scale(),
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = growth_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  if (!options_.enabled) return;
  scale_ = static_cast<float>(state.scale);
  options_.growth_factor = state.growth_factor;
  options_.backoff_factor = state.backoff_factor;
  options_.growth_interval = state.growth_interval;
  growth_tracker_ = state.growth_tracker;
}

bool GradScaler::found_on_any_rank(bool found_here,
                                   const torch::optim::Optimizer& optimizer) const {
  const auto groups = options_.process_group
                          ? std::vector<std::shared_ptr<ProcessGroup>>{options_.process_group}
                          : groups_of(optimizer);
  for (const auto& group : groups) {
    if (group->size() == 1) continue;
    // A rank may have no gradient to take a device from, so the group's device is used.
    auto found =
        at::full({1}, found_here ? 1.0 : 0.0, at::TensorOptions(collective_device(*group)));
    all_reduce(group, found, ReduceOp::kMax, "whether a gradient is not finite").wait();
    found_here = found.item<float>() != 0;
  }
  return found_here;
}

}  // namespace fsdp
