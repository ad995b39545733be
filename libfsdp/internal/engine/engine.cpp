// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include "libfsdp/internal/comm/device_wait.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/rank_monitor.h"
#include "libfsdp/internal/engine/gather.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/own_work.h"
#include "libfsdp/internal/engine/shard_tensor.h"
#include "libfsdp/internal/engine/written_parameters.h"

namespace fsdp::internal {
namespace {

bool reshards_after_forward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

}  // namespace

Engine::Engine(FsdpOptions options, std::shared_ptr<ProcessGroup> shard_group,
               std::shared_ptr<ProcessGroup> replicate_group, c10::Device compute_device,
               std::vector<std::unique_ptr<Unit>> units)
    : options_(std::move(options)),
      shard_group_(std::move(shard_group)),
      replicate_group_(std::move(replicate_group)),
      reshards_after_forward_(reshards_after_forward(options_.sharding_strategy)),
      units_(std::move(units)),
      streams_(compute_device),
      buffers_(streams_, options_.limit_all_gathers),
      gather_checks_(shard_group_, streams_, units_),
      gather_context_{shard_group_, &streams_, &buffers_, &gather_checks_},
      order_(shard_group_->size() == 1 && replicate_group_ ? replicate_group_ : shard_group_) {
  life_->engine = this;
  if (shard_group_->size() > 1 && replicate_group_) order_of_copies_.emplace(replicate_group_);
  reduce_context_.shard_group = shard_group_;
  reduce_context_.replicate_group = replicate_group_;
  reduce_context_.streams = &streams_;
  reduce_context_.buffers = &buffers_;
  reduce_context_.flat = !options_.use_orig_params;
  reduce_context_.keep_low_precision = options_.mixed_precision.keep_low_precision_grads;
  for (const auto& unit : units_) {
    unit->engine = this;
    // A single rank behaves like any other number of ranks; without sharding the module is left as
    // it is.
    unit->always_unsharded =
        unit->resident && options_.sharding_strategy == ShardingStrategy::kNoShard;
    take_over(*unit, /*observed=*/!unit->always_unsharded);
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
  gather_context_.trace = reduce_context_.trace = trace_.get();
  computing_.clear();
}

void Engine::trace_compute(const Unit* unit, Phase phase) {
  if (!trace_) return;
  Trace::Moment now = Trace::now(trace_.get());
  if (!computing_.empty())
    trace_->add(TraceLane::kCompute, computing_, std::move(computing_since_), now);
  computing_.clear();
  if (unit == nullptr) return;
  computing_ = phase == Phase::kForward ? "forward " : "backward ";
  computing_ += unit->name.empty() ? "(root)" : unit->name;
  computing_since_ = std::move(now);
}

void Engine::set_comm_hook(CommHook hook) {
  FSDP_CHECK(!reduce_context_.hook, "a communication hook is registered already");
  FSDP_CHECK(options_.sharding_strategy != ShardingStrategy::kHybridShard &&
                 options_.sharding_strategy != ShardingStrategy::kHybridShardZero2,
             "a communication hook cannot be registered for a hybrid sharding strategy");
  FSDP_CHECK(!has_run_,
             "a communication hook is registered after a forward: register it right after the "
             "module is wrapped, so that every gradient goes through it");
  reduce_context_.hook = std::move(hook);
}

// ---- forward

void Engine::begin_forward() {
  FSDP_CHECK(!summoned_, "forward inside summon_full_params: end its scope first");
  FSDP_CHECK(torch::autograd::get_current_graph_task_id() == -1,
             "forward of a sharded module inside a backward: recompute parts of a module with "
             "fsdp::checkpoint instead");
  FSDP_CHECK(!in_forward_.exchange(true),
             "forward of a sharded module inside its own forward, or in two threads at once: it "
             "gathers and frees one set of parameters; call it in one thread, one call after the "
             "other");
  try {
    const std::lock_guard lock(mutex_);
    streams_.follow_caller();
    FSDP_CHECK(spoiled_.empty(), spoiled_);
    if (!graph_tasks_.empty()) drop_backward();
    check_taken();
    check_untouched();
    follow_freezing();
    follow_with_gradients();
    thread_ = std::this_thread::get_id();
    if (failed_) options_.process_group->monitor().recovered();
    failed_ = false;
    for (const auto& unit : units_) {
      unit->pins = 0;
      // Shards may have been stepped since they were gathered.
      if (!keep_units_ || unit->version() != unit->gathered_version) reshard(*unit);
      for (const auto& parameter : unit->parameters) {
        parameter->version = shard_version(*parameter);
        // Graphs that saved it have no other way to know that it was changed.
        if (parameter->replaced_at && parameter->replaced_at != parameter->version)
          parameter->full.unsafeGetTensorImpl()->bump_version();
        parameter->replaced_at.reset();
      }
    }
    has_run_ = true;
    current_ = nullptr;
    previous_ = nullptr;
    streams_.order(Lane::kCompute, Lane::kUnshard);
  } catch (...) {
    in_forward_ = false;
    throw;
  }
}

void Engine::end_forward() {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  check_taken(/*replaceable=*/true);
  FSDP_CHECK(strangers_ == 0,
             "forward of a sharded module ends while another thread uses its "
             "parameters: wait for the thread in forward");
  in_forward_ = false;
  current_ = nullptr;
  trace_compute(nullptr, Phase::kForward);
  gather_checks_.check_arrived();
  // Without a backward nothing would reshard units, and an optimizer's step would make them
  // stale.
  if (!at::GradMode::is_enabled()) {
    reshard_all();
    settle_shards(Lane::kUnshard);
  } else {
    if (reshard_unused()) settle_shards(Lane::kUnshard);
  }
  take_replacements();
  follow_freezing();
  let_go_of_parameters();
}

void Engine::abandon_forward(const char* what) noexcept {
  in_forward_ = false;
  current_ = nullptr;
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  failed_ = true;
  let_gathers_read();
  options_.process_group->monitor().failed(std::string("its forward threw: ") + what);
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

// A backward that threw ran none of its callbacks.
void Engine::drop_abandoned() noexcept {
  pending_.clear();
  pending_bytes_ = 0;
  in_flight_.clear();
  arriving_.clear();
  for (const auto& unit : units_) {
    unit->expected = unit->ready = 0;
    for (FlatGroup& group : unit->groups) {
      buffers_.abandon(std::move(group.staging), Use::kGradients, Lane::kCompute);
      group.staging.reset();
    }
    for (const auto& parameter : unit->parameters) {
      parameter->staged = parameter->kept_sent = false;
      if (stand_in_of(parameter->full.grad()) == nullptr) parameter->full.mutable_grad().reset();
    }
    show_gradients(*unit);
  }
}

void Engine::forget_order() noexcept {
  order_.forget();
  gather_checks_.forget();
  if (order_of_copies_) order_of_copies_->forget();
}

// ---- outside of a step

void Engine::begin_summon(const char* what) {
  FSDP_CHECK(!in_forward_ && torch::autograd::get_current_graph_task_id() == -1, what,
             " inside forward or backward");
  FSDP_CHECK(!summoned_.exchange(true), what, " inside summon_full_params");
  try {
    const std::lock_guard lock(mutex_);
    streams_.follow_caller();
    if (!graph_tasks_.empty()) drop_backward();
    check_taken();
    check_untouched();
    reshard_all();
    settle_shards(Lane::kUnshard);
    keep_units_ = false;
  } catch (...) {
    summoned_ = false;
    throw;
  }
}

void Engine::end_summon() noexcept {
  let_go_of_parameters();
  summoned_ = false;
}

void Engine::zero_grad(bool set_to_none) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  // The thread of a backward that threw may not have told yet.
  if (!graph_tasks_.empty() && torch::autograd::get_current_graph_task_id() == -1)
    fail_backward();
  else if (failed_)
    let_gathers_read();
  for (const auto& unit : units_) zero_gradients(*unit, set_to_none);
}

void Engine::require_reduced(const char* what) const {
  for (const auto& unit : units_) {
    const Parameter* const parameter = first_kept(*unit);
    FSDP_CHECK(parameter == nullptr, what, ": the gradient of parameter '", parameter->name(),
               "' is not reduced yet: its last backward ran without synchronization (NoSync); run "
               "a backward outside of NoSync before");
  }
}

void Engine::spoil(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (spoiled_.empty()) spoiled_ = why;
}

}  // namespace fsdp::internal
