// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include "libfsdp/internal/comm/device_wait.h"
#include "libfsdp/internal/comm/rank_monitor.h"
#include "libfsdp/internal/engine/gather.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/own_work.h"
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
      streams_(compute_device, options_.limit_all_gathers),
      order_(shard_group_->size() == 1 && replicate_group_ ? replicate_group_ : shard_group_) {
  life_->engine = this;
  if (shard_group_->size() > 1 && replicate_group_) order_of_copies_.emplace(replicate_group_);
  reduce_context_.shard_group = shard_group_;
  reduce_context_.replicate_group = replicate_group_;
  reduce_context_.streams = &streams_;
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
      if (parameter->trainable) hook_gradients(*parameter);
    }
  }
}

Engine::~Engine() {
  life_->engine = nullptr;
  for (const auto& unit : units_) {
    unit->gather.reset();
    release_stand_ins(*unit);
    let_go(*unit);
  }
}

void Engine::start_trace() {
  const std::lock_guard lock(mutex_);
  trace_ = std::make_unique<Trace>(options_.process_group->rank());
  reduce_context_.trace = trace_.get();
  computing_.clear();
}

void Engine::trace_compute(const Unit* unit, Phase phase) {
  if (!trace_) return;
  const auto now = Trace::Clock::now();
  if (!computing_.empty()) trace_->add(TraceLane::kCompute, computing_, computing_since_, now);
  computing_.clear();
  if (unit == nullptr) return;
  computing_ = phase == Phase::kForward ? "forward " : "backward ";
  computing_ += unit->name.empty() ? "(root)" : unit->name;
  computing_since_ = now;
}

void Engine::set_comm_hook(CommHook hook) {
  TORCH_CHECK(!reduce_context_.hook, "a communication hook is registered already");
  TORCH_CHECK(!replicate_group_ || shard_group_->size() == 1,
              "a communication hook cannot be registered for a hybrid sharding strategy");
  reduce_context_.hook = std::move(hook);
}

// ---- forward

void Engine::begin_forward() {
  TORCH_CHECK(!summoned_, "forward inside summon_full_params: end its scope first");
  TORCH_CHECK(torch::autograd::get_current_graph_task_id() == -1,
              "forward of a sharded module inside a backward: recompute parts of a module with "
              "fsdp::checkpoint instead");
  TORCH_CHECK(!in_forward_.exchange(true),
              "forward of a sharded module inside its own forward, or in two threads at once: it "
              "gathers and frees one set of parameters; call it in one thread, one call after the "
              "other");
  try {
    const std::lock_guard lock(mutex_);
    streams_.follow_caller();
    TORCH_CHECK(spoiled_.empty(), spoiled_);
    check_taken();
    thread_ = std::this_thread::get_id();
    if (!graph_tasks_.empty()) {
      graph_tasks_.clear();
      drop_abandoned();
    }
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
  TORCH_CHECK(strangers_ == 0,
              "forward of a sharded module ends while another thread uses its "
              "parameters: wait for the thread in forward");
  in_forward_ = false;
  current_ = nullptr;
  trace_compute(nullptr, Phase::kForward);
  // Without a backward nothing would reshard units, and an optimizer's step would make them
  // stale.
  if (!at::GradMode::is_enabled()) {
    reshard_all();
    settle_shards();
  } else {
    // Unused gathers that were started ahead still read the shards.
    bool in_vain = false;
    for (const auto& unit : units_) {
      if (unit->state != UnitState::kGathering) continue;
      in_vain = true;
      reshard(*unit);
    }
    if (in_vain) settle_shards();
  }
  take_replacements();
}

void Engine::abandon_forward(const char* what) noexcept {
  in_forward_ = false;
  current_ = nullptr;
  const std::lock_guard lock(mutex_);
  failed_ = true;
  options_.process_group->monitor().failed(std::string("its forward threw: ") + what);
  for (const auto& unit : units_) {
    // Do not wait for a gather in flight: other ranks may never enter it.
    if (unit->state == UnitState::kUnsharded) reshard(*unit);
    unit->gather.reset();
    if (unit->state == UnitState::kGathering) unit->state = UnitState::kSharded;
    unit->prefetched = false;
    forget_written(*unit);
  }
  keep_replacements();
}

// A backward that threw ran none of its callbacks.
void Engine::drop_abandoned() noexcept {
  pending_.clear();
  pending_bytes_ = 0;
  in_flight_.clear();
  for (const auto& unit : units_) {
    unit->expected = unit->ready = 0;
    for (FlatGroup& group : unit->groups) {
      streams_.abandon(std::move(group.staging), Use::kGradients);
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
  if (order_of_copies_) order_of_copies_->forget();
}

// ---- gathering

bool Engine::use(const std::vector<Unit*>& units) {
  const int task = torch::autograd::get_current_graph_task_id();
  const bool own = task != -1 || thread_.load() == std::this_thread::get_id();
  if (own && units.size() == 1 && units.front() == current_.load() &&
      task == current_task_.load() && streams_.follows_caller()) {
    ++kernels_;
    return true;
  }
  const std::lock_guard lock(mutex_);
  const Phase phase = task == -1 ? Phase::kForward : Phase::kBackward;
  TORCH_CHECK(phase == Phase::kBackward || in_forward_, "a parameter of unit '",
              units.front()->name,
              "' is used outside of forward and backward of its sharded module, where it has no "
              "memory; read or write parameters inside summon_full_params, and call submodules "
              "through the forward of the module that was wrapped");
  const auto two_threads = [&] {
    return c10::str("parameters of unit '", units.front()->name, "' (", units.front()->first_name(),
                    ") are used in another thread than the one that called forward: ranks would "
                    "gather in different orders; run all of forward in one thread");
  };
  if (!own) {
    const bool read_by_a_kernel =
        kernels_ > 0 && std::all_of(units.begin(), units.end(), [](const Unit* unit) {
          return unit->state == UnitState::kUnsharded;
        });
    TORCH_CHECK(read_by_a_kernel, two_threads());
    ++strangers_;
    return false;
  }
  TORCH_CHECK(phase == Phase::kBackward || strangers_ == 0, two_threads());
  streams_.follow_caller();
  if (phase == Phase::kBackward) enter_backward();
  ++stats_.uses;
  current_ = nullptr;
  trace_compute(nullptr, phase);
  reshard_unrelated(units, phase);
  for (Unit* unit : units) {
    if (unit->prefetched) ++stats_.prefetch_hits;
    unit->prefetched = false;
    if (unit->state == UnitState::kSharded) make_available(*unit, phase);
  }
  for (Unit* unit : units) {
    if (unit->state != UnitState::kGathering) continue;
    try {
      unit->gather->finish(*unit);
    } catch (...) {
      forget_order();
      throw;
    }
  }
  hand_over(units);
  Unit& last = *units.back();
  remember_order(last, phase);
  const bool ahead = phase == Phase::kForward
                         ? options_.forward_prefetch
                         : options_.backward_prefetch == BackwardPrefetch::kBackwardPre;
  // Only a unit that has a place in the order tells which one comes next.
  if (ahead && previous_ == &last) prefetch_after(last, phase);
  current_task_ = task;
  current_ = &last;
  trace_compute(&last, phase);
  ++kernels_;
  return true;
}

void Engine::hand_over(const std::vector<Unit*>& units) {
  if (streams_.on_cpu()) return;
  const c10::StreamId stream = streams_.stream(Lane::kCompute).id();
  bool is_ordered = false;
  for (Unit* unit : units) {
    auto& used_in = unit->used_in;
    if (unit->resident || std::find(used_in.begin(), used_in.end(), stream) != used_in.end())
      continue;
    if (!is_ordered) streams_.order(Lane::kUnshard, Lane::kCompute);
    is_ordered = true;
    streams_.used_on(unit->full, Lane::kCompute);
    used_in.push_back(stream);
  }
}

void Engine::make_available(Unit& unit, Phase phase) {
  if (unit.resident) {
    unit.gathered_version = unit.version();
    make_unsharded(unit);
  } else {
    start_gather(unit, phase);
  }
}

void Engine::pin(Unit& unit, int pins) {
  const std::lock_guard lock(mutex_);
  unit.pins = std::max(unit.pins + pins, 0);
}

void Engine::start_gather(Unit& first, Phase phase) {
  std::vector<Unit*> units{&first};
  const std::int64_t world_size = shard_group_->size();
  std::int64_t bytes = first.gather_bytes * world_size;
  const auto next = [&](const Unit* unit) {
    return phase == Phase::kForward ? unit->next_in_forward : unit->next_in_backward;
  };
  // Adds the units that followed the last time, as long as all fit together.
  for (Unit* unit = next(&first); world_size > 1 && unit != nullptr; unit = next(unit)) {
    bytes += unit->gather_bytes * world_size;
    if (unit->state != UnitState::kSharded || bytes > options_.bucket_bytes ||
        (phase == Phase::kBackward && unit->done()) ||
        std::find(units.begin(), units.end(), unit) != units.end())
      break;
    units.push_back(unit);
  }
  streams_.throttle(
      [&](const c10::Event& event) { wait_for_event(*shard_group_, event, Gather::title(units)); });
  order_.next(Gather::full_title(units));
  for (Unit* unit : units) {
    unit->gathered_version = unit->version();
    unit->gather_number = stats_.gathers;
  }
  Gather::start(shard_group_, streams_, units, units_, trace_.get());
  ++stats_.gathers;
  stats_.gathered_units += static_cast<std::int64_t>(units.size());
  for (std::size_t i = 1; i < units.size(); ++i) {
    units[i]->prefetched = true;
    ++stats_.prefetched_units;
  }
}

void Engine::prefetch_after(const Unit& unit, Phase phase) {
  Unit* next = phase == Phase::kForward ? unit.next_in_forward : unit.next_in_backward;
  if (next == nullptr || next->state != UnitState::kSharded || shard_group_->size() == 1) return;
  if (phase == Phase::kBackward && next->done()) return;
  start_gather(*next, phase);
  next->prefetched = true;
  ++stats_.prefetched_units;
}

// The root's parameters are used between those of other units, so it has no place in their order,
// except as the first.
void Engine::remember_order(Unit& unit, Phase phase) {
  if (previous_phase_ != phase) previous_ = nullptr;
  previous_phase_ = phase;
  if (previous_ != nullptr && previous_ != &unit && unit.parent != nullptr)
    (phase == Phase::kForward ? previous_->next_in_forward : previous_->next_in_backward) = &unit;
  if (unit.parent != nullptr || previous_ == nullptr) previous_ = &unit;
}

void Engine::reshard(Unit& unit) {
  unit.prefetched = false;
  if (unit.state == UnitState::kGathering) unit.gather->discard(unit);
  if (unit.state != UnitState::kUnsharded || unit.always_unsharded) return;
  make_sharded(unit);
  if (unit.resident) return;
  unit.used_in.clear();
  streams_.give(std::move(unit.full), Use::kParameters);
  unit.full.reset();
  streams_.resharded(unit.gather_number);
}

void Engine::reshard_unrelated(const std::vector<Unit*>& units, Phase phase) {
  if (phase == Phase::kForward && !reshards_after_forward_) return;
  for (const auto& unit : units_) {
    if (unit->state != UnitState::kUnsharded || unit->pins > 0) continue;
    // Units kept from forward on may still have their backward ahead.
    if (!reshards_after_forward_ && !(unit->done() && sync_)) continue;
    const bool used = std::any_of(units.begin(), units.end(),
                                  [&](const Unit* other) { return related(*unit, *other); });
    if (!used) reshard(*unit);
  }
}

void Engine::reshard_all() {
  for (const auto& unit : units_) reshard(*unit);
  current_ = nullptr;
}

void Engine::settle_shards() {
  if (streams_.on_cpu()) return;
  streams_.order(Lane::kUnshard, Lane::kCompute);
  // The host writes shards in its memory, and waits for no stream by itself.
  if (options_.cpu_offload.offload_params)
    wait_for_event(*shard_group_, streams_.mark(Lane::kUnshard), "copies of offloaded shards");
}

// ---- outside of a step

void Engine::begin_summon(const char* what) {
  TORCH_CHECK(!in_forward_ && torch::autograd::get_current_graph_task_id() == -1, what,
              " inside forward or backward");
  TORCH_CHECK(!summoned_.exchange(true), what, " inside summon_full_params");
  try {
    const std::lock_guard lock(mutex_);
    streams_.follow_caller();
    check_taken();
    if (!graph_tasks_.empty()) {
      graph_tasks_.clear();
      drop_abandoned();
    }
    reshard_all();
    settle_shards();
    keep_units_ = false;
  } catch (...) {
    summoned_ = false;
    throw;
  }
}

void Engine::zero_grad(bool set_to_none) {
  const std::lock_guard lock(mutex_);
  for (const auto& unit : units_) zero_gradients(*unit, set_to_none);
}

void Engine::require_reduced(const char* what) const {
  for (const auto& unit : units_) {
    const Parameter* const parameter = first_kept(*unit);
    TORCH_CHECK(parameter == nullptr, what, ": the gradient of parameter '", parameter->name(),
                "' is not reduced yet: its last backward ran without synchronization (NoSync); run "
                "a backward outside of NoSync before");
  }
}

void Engine::spoil(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (spoiled_.empty()) spoiled_ = why;
}

}  // namespace fsdp::internal
