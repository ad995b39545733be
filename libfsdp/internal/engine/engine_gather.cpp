// SPDX-License-Identifier: Apache-2.0
// The part of an engine that gathers and reshards units: see Note [one step] in engine.h.
#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include "libfsdp/internal/comm/device_wait.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/own_work.h"

namespace fsdp::internal {

bool Engine::reads_shards(const Unit& unit) const noexcept {
  return unit.sharding->strategy == ShardingStrategy::kNoShard && bracket_ == Bracket::kCalled &&
         !in_forward_ && torch::autograd::get_current_graph_task_id() == -1;
}

bool Engine::use(const std::vector<Unit*>& units) {
  const int task = torch::autograd::get_current_graph_task_id();
  bool own = task != -1 || thread_.load() == std::this_thread::get_id();
  const bool unbracketed = task == -1 && bracket_ == Bracket::kNone;
  if (own && units.size() == 1 && units.front() == current_.load() &&
      task == current_task_.load() && streams_.follows_caller() &&
      !(unbracketed && is_another_forward(units))) {
    ++kernels_;
    return true;
  }
  const std::lock_guard lock(mutex_);
  const Phase phase = task == -1 ? Phase::kForward : Phase::kBackward;
  if (unbracketed && !summoned_) {
    if (in_forward_ && own && is_another_forward(units))
      close_forward(/*keeps_units=*/at::GradMode::is_enabled());
    if (!in_forward_) {
      open_forward();
      in_forward_ = own = true;
    }
    for (Unit* unit : units) follow_freezing(*unit);
  }
  if (summoned_ && std::all_of(units.begin(), units.end(),
                               [](const Unit* unit) { return unit->always_unsharded; })) {
    ++kernels_;
    return true;
  }
  FSDP_CHECK(phase == Phase::kBackward || in_forward_, "a parameter of unit '", units.front()->name,
             "' is used outside of forward and backward of its sharded module, where it has no "
             "memory; read or write parameters inside summon_full_params",
             reads_shards(*units.front()) ? " or a NoGradGuard" : "",
             ", and call submodules through the forward of the module that was wrapped");
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
    FSDP_CHECK(read_by_a_kernel, two_threads());
    ++strangers_;
    return false;
  }
  FSDP_CHECK(phase == Phase::kBackward || strangers_ == 0, two_threads());
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
  for (Unit* unit : units) finish_gather(*unit);
  hand_over(units);
  Unit& last = *units.back();
  remember_order(last, phase);
  const bool ahead = phase == Phase::kForward
                         ? options_.forward_prefetch
                         : options_.backward_prefetch == BackwardPrefetch::kBackwardPre;
  const auto& chosen =
      phase == Phase::kForward ? last.prefetched_in_forward : last.prefetched_in_backward;
  for (Unit* unit : chosen) prefetch(*unit, phase);
  // Only a unit that has a place in the order has a next one.
  if (ahead && chosen.empty() && previous_ == &last) prefetch_after(last, phase);
  current_task_ = task;
  current_ = &last;
  trace_compute(&last, phase);
  ++kernels_;
  return true;
}

bool Engine::is_another_forward(const std::vector<Unit*>& units) const noexcept {
  return grad_mode_ != at::GradMode::is_enabled() ||
         std::any_of(units.begin(), units.end(), [](const Unit* unit) {
           return unit->state != UnitState::kSharded && !unit->always_unsharded &&
                  unit->version() != unit->gathered_version;
         });
}

void Engine::hand_over(const std::vector<Unit*>& units) {
  if (streams_.on_cpu()) return;
  const c10::StreamId stream = streams_.id(Lane::kCompute);
  bool is_ordered = false;
  for (Unit* unit : units) {
    auto& used_in = unit->used_in;
    if (unit->resident || std::find(used_in.begin(), used_in.end(), stream) != used_in.end())
      continue;
    if (!is_ordered) streams_.order(Lane::kUnshard, Lane::kCompute);
    is_ordered = true;
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

CollectiveOrder& Engine::order_over(const std::shared_ptr<ProcessGroup>& group) {
  return orders_.try_emplace(group.get(), group).first->second;
}

void Engine::start_gather(Unit& first, Phase phase) {
  std::vector<Unit*> units{&first};
  const auto& group = first.sharding->mesh.shard;
  const std::int64_t world_size = group->size();
  std::int64_t bytes = first.gather_bytes * world_size;
  const auto next = [&](const Unit* unit) {
    return phase == Phase::kForward ? unit->next_in_forward : unit->next_in_backward;
  };
  // Adds the units that followed the last time, as long as all fit together.
  const bool alone = world_size == 1 || first.piece.defined();
  for (Unit* unit = next(&first); !alone && unit != nullptr; unit = next(unit)) {
    bytes += unit->gather_bytes * world_size;
    if (unit->piece.defined() || unit->state != UnitState::kSharded ||
        bytes > options_.bucket_bytes || unit->sharding->mesh.shard != group ||
        (phase == Phase::kBackward && unit->done()) ||
        std::find(units.begin(), units.end(), unit) != units.end())
      break;
    units.push_back(unit);
  }
  gather_checks_.check_arrived();
  const auto& copies = first.sharding->mesh.replicate;
  order_over(first.piece.defined()       ? first.sharding->kept_over
             : world_size == 1 && copies ? copies
                                         : group)
      .next(Gather::full_title(units));
  for (Unit* unit : units) unit->gathered_version = unit->version();
  Gather::start(gather_context_, units);
  ++stats_.gathers;
  stats_.gathered_units += static_cast<std::int64_t>(units.size());
  for (std::size_t i = 1; i < units.size(); ++i) {
    units[i]->prefetched = true;
    ++stats_.prefetched_units;
  }
}

void Engine::prefetch(Unit& unit, Phase phase) {
  if (unit.state != UnitState::kSharded || unit.sharding->world_size() == 1) return;
  if (phase == Phase::kBackward && unit.done()) return;
  start_gather(unit, phase);
  unit.prefetched = true;
  ++stats_.prefetched_units;
}

void Engine::prefetch_after(const Unit& unit, Phase phase) {
  Unit* next = phase == Phase::kForward ? unit.next_in_forward : unit.next_in_backward;
  if (next != nullptr) prefetch(*next, phase);
}

void Engine::unshard(Unit& unit) {
  const std::lock_guard lock(mutex_);
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  FSDP_CHECK(!summoned_, "unshard() inside summon_full_params: end its scope first");
  if (!backward && !in_forward_) {
    FSDP_CHECK(
        bracket_ == Bracket::kNone, "unshard() of unit '", unit.name,
        "' outside of the forward of the wrapper, which begins with every unit sharded: call "
        "it inside forward, or shard the module by fully_shard()");
    open_forward();
    in_forward_ = true;
  }
  if (unit.state != UnitState::kSharded) return;
  make_available(unit, backward ? Phase::kBackward : Phase::kForward);
  unit.prefetched = true;
  ++stats_.prefetched_units;
}

void Engine::finish_unshard(Unit& unit) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  finish_gather(unit);
  if (unit.state == UnitState::kUnsharded) hand_over({&unit});
}

void Engine::finish_gather(Unit& unit) {
  if (unit.state != UnitState::kGathering) return;
  try {
    unit.gather->finish(unit);
  } catch (...) {
    forget_order();
    throw;
  }
}

void Engine::reshard_now(Unit& unit) {
  const std::lock_guard lock(mutex_);
  FSDP_CHECK(kernels_ == 0 && strangers_ == 0, "reshard() of unit '", unit.name,
             "' while an operator uses parameters");
  if (unit.parent == nullptr && bracket_ == Bracket::kNone && in_forward_ &&
      torch::autograd::get_current_graph_task_id() == -1) {
    close_forward(/*keeps_units=*/false);
    return;
  }
  if (current_ == &unit) current_ = nullptr;
  unit.pins = 0;
  reshard(unit);
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

void Engine::reshard(Unit& unit, bool keeps_piece) {
  unit.prefetched = false;
  if (unit.state == UnitState::kGathering) unit.gather->discard(unit);
  if (unit.piece.defined()) {
    buffers_.give(std::move(unit.piece), Use::kParameters, Lane::kUnshard);
    unit.piece.reset();
  }
  if (unit.state != UnitState::kUnsharded || unit.always_unsharded) return;
  make_sharded(unit);
  if (keeps_piece && !unit.resident) unit.piece = piece_of(unit);
  if (unit.resident) return;
  buffers_.give(std::move(unit.full), Use::kParameters, Lane::kUnshard, unit.used_in);
  unit.full.reset();
  unit.used_in.clear();
}

at::Tensor Engine::piece_of(const Unit& unit) {
  const ProcessGroup& ranks = *unit.sharding->kept_over;
  const OwnWork own;
  const auto lane = streams_.enter(Lane::kUnshard);
  const std::int64_t bytes = unit.full.numel() / ranks.size();
  at::Tensor piece = buffers_.take(bytes, Use::kParameters, Lane::kUnshard);
  piece.copy_(unit.full.narrow(0, bytes * ranks.rank(), bytes), /*non_blocking=*/true);
  return piece;
}

void Engine::reshard_unrelated(const std::vector<Unit*>& units, Phase phase) {
  for (const auto& unit : units_) {
    if (unit->state != UnitState::kUnsharded || unit->pins > 0 || unit->prefetched) continue;
    // Units kept from forward on may still have their backward ahead.
    if (!unit->reshards_after_forward &&
        (phase == Phase::kForward || !unit->done() || !unit->syncs_gradients))
      continue;
    if (phase == Phase::kBackward && !unit->reshards_after_backward) continue;
    const bool used = std::any_of(units.begin(), units.end(),
                                  [&](const Unit* other) { return related(*unit, *other); });
    if (used) continue;
    reshard(*unit,
            /*keeps_piece=*/phase == Phase::kForward && grad_mode_ && unit->sharding->kept_over);
  }
}

void Engine::reshard_all() {
  for (const auto& unit : units_) reshard(*unit);
  current_ = nullptr;
}

bool Engine::reshard_unused() {
  bool any = false;
  for (const auto& unit : units_) {
    if (unit->state != UnitState::kGathering) continue;
    any = true;
    reshard(*unit);
  }
  return any;
}

void Engine::let_gathers_read() noexcept {
  if (!streams_.on_cpu() && offloads_) {
    try {
      wait_for_shards(Lane::kUnshard);
    } catch (const std::exception&) {
      // Other ranks failed, so the copies are not needed.
    }
  }
  for (const auto& unit : units_) {
    if (unit->state == UnitState::kGathering) unit->gather->let_read();
  }
  streams_.order(Lane::kUnshard, Lane::kCompute);
}

void Engine::settle_shards(Lane lane) {
  if (streams_.on_cpu()) return;
  streams_.order(Lane::kUnshard, Lane::kCompute);
  if (offloads_) wait_for_shards(lane);
}

void Engine::wait_for_shards(Lane lane) {
  StreamPoint point = streams_.mark(streams_.id(lane));
  wait_for_event(*options_.process_group, point.event, "copies of offloaded shards");
  streams_.forget(std::move(point));
}

}  // namespace fsdp::internal
