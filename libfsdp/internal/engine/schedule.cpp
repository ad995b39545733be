// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/schedule.h"

#include <algorithm>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

Unit* const& after(const Unit& unit, Phase phase) {
  return phase == Phase::kForward ? unit.next_in_forward : unit.next_in_backward;
}

// Returns the unit that followed the last time, if there is one.
std::span<Unit* const> next_of(const Unit& unit, Phase phase) {
  Unit* const& next = after(unit, phase);
  return {&next, next == nullptr ? std::size_t{0} : std::size_t{1}};
}

}  // namespace

void CollectiveOrder::next(const std::string& what) {
  if (group_->size() == 1) return;
  const auto known = after_.find(before_last_ + '\n' + last_);
  if (known == after_.end() || known->second != what) {
    agree(what);
    after_[before_last_ + '\n' + last_] = what;
  }
  before_last_ = std::exchange(last_, what);
}

void CollectiveOrder::forget() noexcept {
  after_.clear();
  before_last_.clear();
  last_.clear();
  ++forgotten_;
}

void CollectiveOrder::agree(const std::string& what) {
  const std::string mine = what + '\n' + std::to_string(forgotten_);
  std::vector<std::string> texts;
  try {
    texts = all_gather_text(group_, mine, what);
  } catch (...) {
    forget();
    throw;
  }
  std::uint64_t most = forgotten_;
  bool alike = true;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const std::size_t end = texts[rank].rfind('\n');
    const std::string theirs = texts[rank].substr(0, end);
    if (theirs != what) {
      forget();
      FSDP_CHECK(false, "rank ", group_->global_rank(static_cast<int>(rank)),
                 " is about to start the ", theirs, " where this rank starts the ", what,
                 ": the ranks run different operators, but every rank must use the units of the "
                 "module in one order; a branch in forward must not depend on the rank or its "
                 "data, unless every rank uses the parameters of both branches");
    }
    const std::uint64_t times = std::stoull(texts[rank].substr(end + 1));
    alike = alike && times == forgotten_;
    most = std::max(most, times);
  }
  if (alike) return;
  forget();
  forgotten_ = most + 1;
}

// The root's parameters are used between those of other units, so it has no place in their order,
// except as the first.
void Schedule::used(Unit& unit, Phase phase) {
  if (previous_phase_ != phase) previous_ = nullptr;
  previous_phase_ = phase;
  if (previous_ != nullptr && previous_ != &unit && unit.parent != nullptr)
    (phase == Phase::kForward ? previous_->next_in_forward : previous_->next_in_backward) = &unit;
  if (unit.parent != nullptr || previous_ == nullptr) previous_ = &unit;
}

std::span<Unit* const> Schedule::ahead_of(const Unit& unit, Phase phase) const {
  const bool forward = phase == Phase::kForward;
  const auto& chosen = forward ? unit.prefetched_in_forward : unit.prefetched_in_backward;
  const bool ahead = forward ? options_.forward_prefetch
                             : options_.backward_prefetch == BackwardPrefetch::kBackwardPre;
  // Only a unit that has a place in the order has a next one.
  if (chosen.empty() && ahead && previous_ == &unit) return next_of(unit, phase);
  return chosen;
}

std::span<Unit* const> Schedule::ahead_of_made(const Unit& unit) const {
  if (options_.backward_prefetch != BackwardPrefetch::kBackwardPost) return {};
  return next_of(unit, Phase::kBackward);
}

std::vector<Unit*> Schedule::together_with(Unit& first, Phase phase) const {
  std::vector<Unit*> units{&first};
  const auto& group = first.sharding->mesh.shard;
  const std::int64_t world_size = group->size();
  if (world_size == 1 || first.piece.defined()) return units;
  std::int64_t bytes = first.gather_bytes * world_size;
  for (Unit* unit = after(first, phase); unit != nullptr; unit = after(*unit, phase)) {
    bytes += unit->gather_bytes * world_size;
    if (unit->piece.defined() || unit->state != UnitState::kSharded ||
        bytes > options_.bucket_bytes || unit->sharding->mesh.shard != group ||
        (phase == Phase::kBackward && unit->done()) ||
        std::find(units.begin(), units.end(), unit) != units.end())
      break;
    units.push_back(unit);
  }
  return units;
}

void Schedule::next(const std::shared_ptr<ProcessGroup>& group, const std::string& what) {
  orders_.try_emplace(group.get(), group).first->second.next(what);
}

void Schedule::forget() noexcept {
  for (auto& [group, order] : orders_) order.forget();
}

}  // namespace fsdp::internal
