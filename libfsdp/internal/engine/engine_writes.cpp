// SPDX-License-Identifier: Apache-2.0
// The part of an engine that handles what a user does to parameters and shards: writes in forward
// (see Note [writes in forward] in written_parameters.h), and what is set between steps.
#include <cstdint>
#include <exception>
#include <mutex>

#include <torch/csrc/autograd/variable.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/freezing.h"
#include "libfsdp/internal/units/written_parameters.h"

namespace fsdp::internal {
namespace {

// Returns 0 for parameters made in inference mode.
std::uint32_t version_of(const at::Tensor& tensor) noexcept {
  const auto& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

bool has_hook(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr && (!meta->hooks_.empty() || meta->cpp_hooks_list_ != nullptr ||
                             meta->post_acc_grad_hooks_ != nullptr);
}

}  // namespace

void Engine::check_untouched() const {
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      FSDP_CHECK(!has_hook(parameter->shard), "the shard of parameter '", parameter->name(),
                 "' has a hook, which autograd never runs: gradients are made for the module's own "
                 "parameter; register the hook there, where it gets this rank's whole gradient "
                 "before it is reduced");
      // Parameters that are not sharded may be written at any time.
      FSDP_CHECK(unit->always_unsharded || version_of(parameter->full) == parameter->full_version,
                 "parameter '", parameter->name(),
                 "' was written through an older detach() or view of it, which no longer shares "
                 "its memory: write the parameter inside summon_full_params()");
    }
    for (const FlatGroup& group : unit->groups)
      FSDP_CHECK(!has_hook(group.flat), "the flat tensor of unit '", unit->name,
                 "' has a hook, which autograd never runs: register hooks on the module's own "
                 "parameters");
  }
}

void Engine::let_go_of_parameters() noexcept {
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters)
      parameter->full_version = version_of(parameter->full);
  }
}

void Engine::follow_freezing() {
  for (const auto& unit : units_) follow_freezing(*unit);
}

void Engine::follow_freezing(Unit& unit) {
  if (!was_set(unit)) return;
  // Reductions in flight have the old layout.
  finish_reductions(0);
  follow_requires_grad(unit);
  for (const auto& parameter : unit.parameters) hook_gradients(*parameter);
}

void Engine::check_taken(bool replaceable) const {
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      FSDP_CHECK(
          still_taken(*parameter) || (replaceable && is_replaced(*parameter)), "parameter '",
          parameter->name(),
          "' is not the tensor that was sharded any more: the module was moved, cast or loaded "
          "after it was wrapped, or its forward replaces the tensor (set_data) by one of another "
          "shape, dtype or device, or by another parameter; do that before the module is wrapped, "
          "or copy values into the parameters inside summon_full_params");
    }
  }
}

void Engine::take_replacements() {
  bool any = false;
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      if (still_taken(*parameter) || !is_replaced(*parameter)) continue;
      take_replacement(*parameter);
      any = true;
    }
  }
  if (any) streams_.order(Lane::kCompute, Lane::kUnshard);
}

// Call after a forward or backward that threw; that error is enough, so this one throws none.
void Engine::keep_replacements() noexcept {
  try {
    take_replacements();
  } catch (const std::exception&) {
    // The parameter has its own tensor again.  The next forward reports other replacements.
  }
}

void Engine::written(Parameter& parameter, const std::string& writer) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  const OwnWork own;
  // Uses the parameter's own tensor, not a replacement.
  take_written(parameter, parameter.home.detach(), writer);
  streams_.order(Lane::kCompute, Lane::kUnshard);
}

}  // namespace fsdp::internal
