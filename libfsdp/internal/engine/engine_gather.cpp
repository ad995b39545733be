// SPDX-License-Identifier: Apache-2.0
// The part of an engine that gathers and reshards units: see Note [one step] in engine.h.
#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/comm/waits.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/gather.h"

namespace fsdp::internal {

bool Engine::reads_shards(const Unit& unit) const noexcept {
  return unit.sharding->strategy == ShardingStrategy::kNoShard && bracket_ == Bracket::kCalled &&
         !step_.in_forward && torch::autograd::get_current_graph_task_id() == -1;
}

bool Engine::use(const std::vector<Unit*>& units) {
  const int task = torch::autograd::get_current_graph_task_id();
  bool own = task != -1 || step_.thread.load() == std::this_thread::get_id();
  const bool unbracketed = task == -1 && bracket_ == Bracket::kNone;
  if (own && units.size() == 1 && units.front() == step_.current.load() &&
      task == step_.current_task.load() && streams_.follows_caller() &&
      !(unbracketed && is_another_forward(units))) {
    ++step_.kernels;
    return true;
  }
  const std::lock_guard lock(mutex_);
  const Phase phase = task == -1 ? Phase::kForward : Phase::kBackward;
  if (unbracketed && !summoned_) {
    if (step_.in_forward && own && is_another_forward(units))
      close_forward(/*keeps_units=*/at::GradMode::is_enabled());
    if (!step_.in_forward) {
      open_forward();
      step_.in_forward = own = true;
    }
    for (Unit* unit : units) follow_freezing(*unit);
  }
  if (summoned_ && std::all_of(units.begin(), units.end(),
                               [](const Unit* unit) { return unit->always_unsharded; })) {
    ++step_.kernels;
    return true;
  }
  FSDP_CHECK(phase == Phase::kBackward || step_.in_forward, "a parameter of unit '",
             units.front()->name,
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
        step_.kernels > 0 && std::all_of(units.begin(), units.end(), [](const Unit* unit) {
          return unit->state == UnitState::kUnsharded;
        });
    FSDP_CHECK(read_by_a_kernel, two_threads());
    ++step_.strangers;
    return false;
  }
  FSDP_CHECK(phase == Phase::kBackward || step_.strangers == 0, two_threads());
  streams_.follow_caller();
  if (phase == Phase::kBackward) enter_backward();
  ++stats_.uses;
  step_.current = nullptr;
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
  schedule_.used(last, phase);
  for (Unit* unit : schedule_.ahead_of(last, phase)) prefetch(*unit, phase);
  step_.current_task = task;
  step_.current = &last;
  trace_compute(&last, phase);
  ++step_.kernels;
  return true;
}

bool Engine::is_another_forward(const std::vector<Unit*>& units) const noexcept {
  return step_.grad_mode != at::GradMode::is_enabled() ||
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

void Engine::start_gather(Unit& first, Phase phase) {
  const std::vector<Unit*> units = schedule_.together_with(first, phase);
  gather_checks_.check_arrived();
  const Mesh& mesh = first.sharding->mesh;
  schedule_.next(first.piece.defined()                       ? first.sharding->kept_over
                 : mesh.shard->size() == 1 && mesh.replicate ? mesh.replicate
                                                             : mesh.shard,
                 Gather::full_title(units));
  for (Unit* unit : units) unit->gathered_version = unit->version();
  Gather::start(context_, units);
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

void Engine::unshard(Unit& unit) {
  const std::lock_guard lock(mutex_);
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  FSDP_CHECK(!summoned_, "unshard() inside summon_full_params: end its scope first");
  if (!backward && !step_.in_forward) {
    FSDP_CHECK(
        bracket_ == Bracket::kNone, "unshard() of unit '", unit.name,
        "' outside of the forward of the wrapper, which begins with every unit sharded: call "
        "it inside forward, or shard the module by fully_shard()");
    open_forward();
    step_.in_forward = true;
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
  FSDP_CHECK(step_.kernels == 0 && step_.strangers == 0, "reshard() of unit '", unit.name,
             "' while an operator uses parameters");
  if (unit.parent == nullptr && bracket_ == Bracket::kNone && step_.in_forward &&
      torch::autograd::get_current_graph_task_id() == -1) {
    close_forward(/*keeps_units=*/false);
    return;
  }
  if (step_.current == &unit) step_.current = nullptr;
  unit.pins = 0;
  reshard(unit);
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
  if (unit.resident) return;
  if (keeps_piece) {
    const ProcessGroup& ranks = *unit.sharding->kept_over;
    const OwnWork own;
    const auto lane = streams_.enter(Lane::kUnshard);
    const std::int64_t bytes = unit.full.numel() / ranks.size();
    unit.piece = buffers_.take(bytes, Use::kParameters, Lane::kUnshard);
    unit.piece.copy_(unit.full.narrow(0, bytes * ranks.rank(), bytes), /*non_blocking=*/true);
  }
  buffers_.give(std::move(unit.full), Use::kParameters, Lane::kUnshard, unit.used_in);
  unit.full.reset();
  unit.used_in.clear();
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
    reshard(
        *unit,
        /*keeps_piece=*/phase == Phase::kForward && step_.grad_mode && unit->sharding->kept_over);
  }
}

void Engine::reshard_all() {
  for (const auto& unit : units_) reshard(*unit);
  step_.current = nullptr;
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
