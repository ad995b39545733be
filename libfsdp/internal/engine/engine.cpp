// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/engine.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/comm/waits.h"
#include "libfsdp/internal/engine/gather.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/observer.h"
#include "libfsdp/internal/units/same_copies.h"
#include "libfsdp/internal/units/shard_tensor.h"
#include "libfsdp/internal/units/written_parameters.h"

namespace fsdp::internal {

Engine::Engine(FsdpOptions options, std::shared_ptr<WrappedModule> wrapped,
               c10::Device compute_device, std::vector<std::unique_ptr<Unit>> units,
               Bracket bracket)
    : options_(std::move(options)),
      units_(std::move(units)),
      bracket_(bracket),
      wrapped_(std::move(wrapped)),
      streams_(compute_device),
      buffers_(streams_, options_.limit_all_gathers),
      gather_checks_(streams_, units_),
      context_{streams_, buffers_, gather_checks_},
      schedule_(options_) {
  const OwnWork own;
  life_->engine = this;
  std::int64_t id = 0;
  for (const auto& unit : units_) {
    unit->engine = this;
    set_id(*unit, id++);
    offloads_ = offloads_ || unit->sharding->is_offloaded;
    unit->reshards_after_forward = unit->sharding->reshards_after_forward;
    // A single rank behaves like any other number of ranks.  With NO_SHARD operators are not
    // observed, unless nothing else tells of the forward.
    unit->always_unsharded =
        unit->resident && unit->sharding->strategy == ShardingStrategy::kNoShard;
    const bool observed = !unit->always_unsharded || bracket_ == Bracket::kNone;
    take_over(*unit, observed ? std::optional(interception_key()) : std::nullopt);
    if (unit->always_unsharded) make_unsharded(*unit);
    for (const auto& parameter : unit->parameters) {
      hook_gradients(*parameter);
      set_owner(parameter->shard, life_);
    }
    for (const FlatGroup& group : unit->groups) set_owner(group.flat, life_);
  }
  gradient_stream_ = streams_.id(Lane::kCompute);
  let_go_of_parameters();
}

std::vector<std::unique_ptr<Unit>> Engine::release_units() {
  const std::lock_guard lock(life_->mutex);
  life_->engine = nullptr;
  for (const auto& unit : units_) {
    unit->engine = nullptr;
    // Autograd makes new nodes, without the hooks of this engine.
    for (const auto& parameter : unit->parameters) parameter->accumulator.reset();
  }
  return std::move(units_);
}

Engine::~Engine() {
  {
    const std::lock_guard lock(life_->mutex);
    life_->engine = nullptr;
  }
  for (const auto& unit : units_) {
    unit->gather.reset();
    release_stand_ins(*unit);
    let_go(*unit);
  }
}

void Engine::start_trace() {
  const std::lock_guard lock(mutex_);
  trace_ = std::make_unique<Trace>(options_.process_group->rank());
  if (!streams_.on_cpu()) {
    trace_->time_device(streams_.device(),
                        [group = options_.process_group] { return is_capturing(*group); });
  }
  context_.trace = trace_.get();
}

void Engine::trace_compute(const Unit* unit, Phase phase) {
  if (!trace_) return;
  std::string name;
  if (unit != nullptr)
    name = (phase == Phase::kForward ? "forward " : "backward ") +
           (unit->name.empty() ? "(root)" : unit->name);
  trace_->compute(std::move(name));
}

void Engine::set_comm_hook(const std::vector<Unit*>& units, const CommHook& hook) {
  for (const Unit* unit : units) {
    FSDP_CHECK(!unit->comm_hook, "a communication hook is registered already");
    FSDP_CHECK(!is_hybrid(unit->sharding->strategy),
               "a communication hook cannot be registered for a hybrid sharding strategy");
  }
  FSDP_CHECK(!has_run_,
             "a communication hook must be registered before the first forward: register it right "
             "after the module is wrapped, so that every gradient goes through it");
  change(units, [&](Unit& unit) { unit.comm_hook = hook; });
}

// ---- forward

void Engine::begin_forward() {
  if (bracket_ == Bracket::kNone) return;
  FSDP_CHECK(!summoned_, "forward inside summon_full_params: end its scope first");
  FSDP_CHECK(torch::autograd::get_current_graph_task_id() == -1,
             "forward of a sharded module inside a backward: recompute parts of a module with "
             "fsdp::checkpoint instead");
  FSDP_CHECK(
      !step_.in_forward.exchange(true),
      "forward of a sharded module inside its own forward, or in two threads at once: there is one "
      "set of gathered parameters; call forward in one thread, one call after the other");
  try {
    const std::lock_guard lock(mutex_);
    open_forward();
  } catch (...) {
    step_.in_forward = false;
    throw;
  }
}

void Engine::open_forward() {
  streams_.follow_caller();
  check_registered(*wrapped_, units_);
  FSDP_CHECK(spoiled_.empty(), spoiled_);
  if (step_.in_backward()) drop_backward();
  check_taken();
  check_untouched();
  follow_freezing();
  follow_with_gradients();
  if (!has_run_) require_same_copies(units_);
  step_.thread = std::this_thread::get_id();
  step_.grad_mode = at::GradMode::is_enabled();
  if (step_.failed) monitor_of(*options_.process_group).recovered();
  step_.failed = false;
  for (const auto& unit : units_) {
    unit->pins = 0;
    // Shards may have been stepped since they were gathered.
    if (!unit->outlives_backward || unit->version() != unit->gathered_version)
      reshard(*unit);
    else
      unit->prefetched = unit->reshards_after_forward;  // until its first use
    for (const auto& parameter : unit->parameters) {
      parameter->version = shard_version(*parameter);
      // Graphs that saved it have no other way to know that it was changed.
      if (parameter->replaced_at && parameter->replaced_at != parameter->version)
        parameter->full.unsafeGetTensorImpl()->bump_version();
      parameter->replaced_at.reset();
    }
  }
  has_run_ = true;
  step_.current = nullptr;
  schedule_.begin_phase();
  streams_.order(Lane::kCompute, Lane::kUnshard);
}

void Engine::end_forward() {
  if (bracket_ == Bracket::kNone) return;
  const std::lock_guard lock(mutex_);
  // Without a backward nothing would reshard units, and an optimizer's step would make them stale.
  close_forward(/*keeps_units=*/at::GradMode::is_enabled());
}

void Engine::close_forward(bool keeps_units) {
  streams_.follow_caller();
  check_taken(/*replaceable=*/true);
  FSDP_CHECK(step_.strangers == 0,
             "forward of a sharded module ends while another thread still uses its parameters: "
             "wait for that thread inside forward");
  step_.in_forward = false;
  step_.current = nullptr;
  trace_compute(nullptr, Phase::kForward);
  gather_checks_.check_arrived();
  bool settles = !keeps_units;
  if (!keeps_units) reshard_all();
  // Gathers of prefetched units that were not used still read shards.
  for (const auto& unit : units_) {
    if (unit->state != UnitState::kGathering) continue;
    settles = true;
    reshard(*unit);
  }
  if (settles) settle_shards(Lane::kUnshard);
  take_replacements();
  follow_freezing();
  let_go_of_parameters();
}

void Engine::abandon_forward(const char* what) noexcept {
  step_.in_forward = false;
  step_.current = nullptr;
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  step_.failed = true;
  let_gathers_read();
  monitor_of(*options_.process_group).failed(std::string("its forward threw: ") + what);
  for (const auto& unit : units_) {
    // The host does not wait for a gather in flight: other ranks may never enter it.
    if (unit->state == UnitState::kUnsharded) reshard(*unit);
    unit->gather.reset();
    if (unit->state == UnitState::kGathering) unit->state = UnitState::kSharded;
    unit->prefetched = false;
    forget_written(*unit);
  }
  keep_replacements();
  let_go_of_parameters();
}

void Engine::forget_order() noexcept {
  schedule_.forget();
  gather_checks_.forget();
}

// ---- outside of a step

void Engine::begin_summon(const char* what) {
  if (bracket_ == Bracket::kNone && step_.in_forward) {
    const std::lock_guard lock(mutex_);
    close_forward(/*keeps_units=*/false);
  }
  FSDP_CHECK(!step_.in_forward && torch::autograd::get_current_graph_task_id() == -1, what,
             " inside forward or backward");
  FSDP_CHECK(!summoned_.exchange(true), what, " inside summon_full_params");
  try {
    const std::lock_guard lock(mutex_);
    streams_.follow_caller();
    if (step_.in_backward()) drop_backward();
    check_taken();
    check_untouched();
    reshard_all();
    settle_shards(Lane::kUnshard);
    for (const auto& unit : units_) unit->outlives_backward = false;
  } catch (...) {
    summoned_ = false;
    throw;
  }
}

void Engine::end_summon() noexcept {
  let_go_of_parameters();
  summoned_ = false;
}

void Engine::zero_grad(const std::vector<Unit*>& units, bool set_to_none) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  // The thread of a backward that threw may not have reported it yet.
  if (step_.in_backward() && torch::autograd::get_current_graph_task_id() == -1)
    fail_backward();
  else if (step_.failed)
    let_gathers_read();
  require_finished("zero_grad");
  for (Unit* unit : units) zero_gradients(*unit, set_to_none);
}

void Engine::require_finished(const char* what) const {
  FSDP_CHECK(step_.in_flight.empty(), what,
             ": the last backward left gradients that are still being reduced, because "
             "set_is_last_backward(false) was called; first run a backward after "
             "set_is_last_backward(true)");
}

void Engine::spoil(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (spoiled_.empty()) spoiled_ = why;
}

}  // namespace fsdp::internal
