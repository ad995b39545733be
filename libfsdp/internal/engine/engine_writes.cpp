// SPDX-License-Identifier: Apache-2.0
// The part of an engine that handles parameters that a forward writes: see Note [writes in forward]
// in written_parameters.h.
#include <exception>
#include <mutex>

#include <c10/util/Exception.h>

#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/own_work.h"
#include "libfsdp/internal/engine/written_parameters.h"

namespace fsdp::internal {

void Engine::check_taken(bool replaceable) const {
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      TORCH_CHECK(still_taken(*parameter) || (replaceable && is_replaced(*parameter)),
                  "parameter '", parameter->name(),
                  "' is not the tensor that was sharded any more: the module was moved, cast or "
                  "loaded after it was wrapped, or its forward replaces the tensor (set_data) by "
                  "one of another shape, dtype or device, or by another parameter; do that before, "
                  "or copy values into the parameters inside summon_full_params");
    }
  }
}

void Engine::take_replacements() {
  bool any = false;
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      if (still_taken(*parameter) || !is_replaced(*parameter)) continue;
      take_replacement(*parameter, shard_group_->rank());
      any = true;
    }
  }
  if (any) streams_.order(Lane::kCompute, Lane::kUnshard);
}

// Called after a forward or backward that threw; its error is enough.
void Engine::keep_replacements() noexcept {
  try {
    take_replacements();
  } catch (const std::exception&) {
    // Its place was given back.  The next forward reports the others.
  }
}

void Engine::written(Parameter& parameter, const std::string& writer) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  const OwnWork own;
  // Uses the parameter's own tensor, not one that may be in its place by now.
  take_written(parameter, parameter.home.detach(), shard_group_->rank(), writer);
  streams_.order(Lane::kCompute, Lane::kUnshard);
}

}  // namespace fsdp::internal
