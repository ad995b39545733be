// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/gather.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/engine/own_work.h"

namespace fsdp::internal {
namespace {

bool casts(const Unit& unit) {
  return std::any_of(unit.groups.begin(), unit.groups.end(),
                     [](const FlatGroup& group) { return group.compute_dtype != group.dtype; });
}

// Writes a unit's block: its shards in the dtype of compute, and the trailer.
void fill(const Unit& unit, const at::Tensor& block, bool cast) {
  if (!cast) {
    block.copy_(unit.local, /*non_blocking=*/true);
    return;
  }
  for (const FlatGroup& group : unit.groups) {
    const auto bytes =
        group.numel * static_cast<std::int64_t>(c10::elementSize(group.compute_dtype));
    block.narrow(0, group.gather_offset, bytes)
        .view(group.compute_dtype)
        .copy_(group.local, /*non_blocking=*/true);
  }
  block.narrow(0, unit.gather_bytes - kTrailerBytes, kTrailerBytes)
      .copy_(unit.local.narrow(0, unit.local.numel() - kTrailerBytes, kTrailerBytes),
             /*non_blocking=*/true);
}

}  // namespace

std::string Gather::title(const std::vector<Unit*>& units) {
  std::string text = "all-gather of ";
  text += units.front()->name.empty() ? "the root unit" : units.front()->name;
  if (units.size() > 1) text += " and " + std::to_string(units.size() - 1) + " more units";
  return text;
}

std::string Gather::full_title(const std::vector<Unit*>& units) {
  std::string text = "all-gather of ";
  for (const Unit* unit : units)
    text +=
        (unit == units.front() ? "" : ", ") + (unit->name.empty() ? "the root unit" : unit->name);
  return text;
}

Gather::Gather(std::shared_ptr<ProcessGroup> group, Streams& streams, std::vector<Unit*> units,
               const std::vector<std::unique_ptr<Unit>>& all, Trace* trace)
    : group_(std::move(group)),
      streams_(streams),
      units_(std::move(units)),
      all_(all),
      trace_(trace),
      started_(Trace::Clock::now()) {}

Gather::~Gather() {
  streams_.abandon(std::move(staging_), Use::kParameters);
  streams_.abandon(std::move(blocks_), Use::kParameters);
}

void Gather::start(const std::shared_ptr<ProcessGroup>& group, Streams& streams,
                   const std::vector<Unit*>& units, const std::vector<std::unique_ptr<Unit>>& all,
                   Trace* trace) {
  const OwnWork own;
  const auto lane = streams.enter(Lane::kUnshard);
  const std::shared_ptr<Gather> gather(new Gather(group, streams, units, all, trace));
  std::vector<std::int64_t> positions;
  for (const Unit* unit : units) {
    positions.push_back(gather->block_bytes_);
    gather->block_bytes_ += unit->gather_bytes;
  }
  at::Tensor input;
  const Unit& first = *units.front();
  const bool as_it_is = units.size() == 1 && !casts(first) &&
                        first.local.device() == streams.device() && group->size() > 1;
  if (as_it_is) {
    input = first.local;
  } else {
    gather->staging_ = streams.take(gather->block_bytes_, Use::kParameters);
    input = gather->staging_;
    for (std::size_t i = 0; i < units.size(); ++i)
      fill(*units[i], input.narrow(0, positions[i], units[i]->gather_bytes), casts(*units[i]));
  }
  if (group->size() > 1) {
    gather->blocks_ = streams.take(gather->block_bytes_ * group->size(), Use::kParameters);
    gather->pending_ = all_gather(group, gather->blocks_, input, title(units));
  } else {
    gather->blocks_ = std::move(gather->staging_);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    units[i]->gather = gather;
    units[i]->gather_position = positions[i];
    units[i]->state = UnitState::kGathering;
  }
}

void Gather::finish(Unit& unit) {
  // The unit may hold the last reference.
  const std::shared_ptr<Gather> self = shared_from_this();
  const TraceSpan span(trace_, TraceLane::kCopy, "unshard", unit.name);
  const OwnWork own;
  const auto lane = streams_.enter(Lane::kUnshard);
  try {
    wait();
    copy_out(unit);
  } catch (...) {
    fail();
    throw;
  }
  leave(unit);
  make_unsharded(unit);
}

void Gather::discard(Unit& unit) {
  const std::shared_ptr<Gather> self = shared_from_this();
  const OwnWork own;
  const auto lane = streams_.enter(Lane::kUnshard);
  try {
    wait();
  } catch (...) {
    fail();
    throw;
  }
  leave(unit);
  unit.state = UnitState::kSharded;
}

void Gather::wait() {
  if (waited_) return;
  pending_.wait();
  check_trailers();
  waited_ = true;
  if (trace_ != nullptr)
    trace_->add(TraceLane::kUnshard, title(units_), started_, Trace::Clock::now());
}

Trailer Gather::trailer(const Unit& unit, int rank) const {
  Trailer result;
  std::memcpy(&result,
              static_cast<const char*>(blocks_.const_data_ptr()) + rank * block_bytes_ +
                  unit.gather_position + unit.gather_bytes - kTrailerBytes,
              sizeof(result));
  return result;
}

// On an accelerator the blocks are not here yet, and waiting would hold up the caller.
void Gather::check_trailers() const {
  if (!streams_.on_cpu()) return;
  for (const Unit* unit : units_) {
    const std::uint64_t written = trailer(*unit, group_->rank()).written;
    for (int rank = 0; rank < group_->size(); ++rank) {
      const Trailer theirs = trailer(*unit, rank);
      const std::int64_t id = theirs.unit_id;
      const bool known = id >= 0 && id < static_cast<std::int64_t>(all_.size());
      TORCH_CHECK(id == unit->id, "rank ", group_->global_rank(rank), " gathers ",
                  known ? "'" + all_[static_cast<std::size_t>(id)]->name + "'" : "something else",
                  " where this rank gathers '", unit->name,
                  "': the ranks run different operators, but every rank must use the units of the "
                  "module in one order");
      TORCH_CHECK(
          theirs.written == written, "forward of rank ", group_->global_rank(rank),
          " wrote other values than that of this rank to parameters of unit '", unit->name, "'",
          unit->last_written == nullptr ? std::string()
                                        : ", here '" + unit->last_written->name() + "' last",
          ": each rank keeps its rows of what it writes, so that what forward writes to a "
          "parameter must not depend on the rank or on its data; leave such parameters "
          "whole with ignored_states");
    }
  }
}

void Gather::copy_out(Unit& unit) {
  const std::int64_t world_size = group_->size();
  if (world_size == 1) {
    unit.full = std::move(blocks_);
    return;
  }
  unit.full = streams_.take((unit.gather_bytes - kTrailerBytes) * world_size, Use::kParameters);
  for (const FlatGroup& group : unit.groups) {
    const auto item = static_cast<std::int64_t>(c10::elementSize(group.compute_dtype));
    for (const Parameter* parameter : group.parameters) {
      const std::int64_t share = parameter->layout.padded_numel() * item;
      const std::int64_t from =
          unit.gather_position + group.gather_offset + parameter->offset * item;
      const std::int64_t to = (group.gather_offset + parameter->offset * item) * world_size;
      if (share == 0) continue;
      if (streams_.on_cpu()) {
        const auto* source = static_cast<const char*>(blocks_.const_data_ptr()) + from;
        auto* target = static_cast<char*>(unit.full.mutable_data_ptr()) + to;
        for (std::int64_t rank = 0; rank < world_size; ++rank)
          std::memcpy(target + rank * share, source + rank * block_bytes_,
                      static_cast<std::size_t>(share));
      } else {
        unit.full.narrow(0, to, share * world_size)
            .view({world_size, share})
            .copy_(blocks_.view({world_size, block_bytes_}).narrow(1, from, share));
      }
    }
  }
}

void Gather::leave(Unit& unit) {
  std::erase(units_, &unit);
  unit.gather.reset();
  if (!units_.empty()) return;
  streams_.give(std::move(staging_), Use::kParameters);
  streams_.give(std::move(blocks_), Use::kParameters);
}

void Gather::fail() noexcept {
  for (Unit* unit : units_) {
    unit->gather.reset();
    unit->prefetched = false;
    unit->state = UnitState::kSharded;
    streams_.abandon(std::move(unit->full), Use::kParameters);
  }
  units_.clear();
}

}  // namespace fsdp::internal
