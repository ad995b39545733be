// SPDX-License-Identifier: Apache-2.0
// Decides which units are gathered together and ahead of their use, from the order in which the
// operators of the last step used them, and keeps all ranks in one order of collectives.
//
// Note [order of collectives]: ranks whose forwards differ gather units of different sizes, and
// Gloo ends the process if a message is longer than the receiver's buffer: checking the data that
// arrived is too late.  So ranks agree first, mostly without communication: they agree once on what
// follows the last two collectives, and every rank remembers it.  A rank that does the same again
// sends at once.  A rank that does something else asks all others through the store, which is
// always safe.  If the others ask too, for the same collective, all remember it; for another
// collective, all throw.  If the others wait in the expected collective, the asking rank finds that
// in their notes (see rank_monitor.h) and throws, which ends their wait.
//
// The ranks of one replica keep one order of all collectives.  The replicas of a hybrid strategy
// keep one order of their reductions, the only collectives that they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

// Ensures that every rank of a group is about to run the same collective.
class CollectiveOrder {
 public:
  explicit CollectiveOrder(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Call before each collective.  `what` names the collective and all its units, which determine
  // the sizes.
  // Throws: c10::Error naming the ranks that are about to run another collective; PeerError.
  void next(const std::string& what);
  // Call after a collective failed: this rank may now remember another order than the others.
  void forget() noexcept;

 private:
  void agree(const std::string& what);

  const std::shared_ptr<ProcessGroup> group_;
  std::unordered_map<std::string, std::string> after_;  // by the two collectives before
  std::string before_last_;
  std::string last_;
  std::uint64_t forgotten_ = 0;  // ranks whose numbers differ all forget
};

enum class Phase { kForward, kBackward };

class Schedule {
 public:
  // Lifetime: the options outlive this object.
  explicit Schedule(const FsdpOptions& options) : options_(options) {}

  // Call when a phase begins or ends: no unit follows one of another phase.
  void begin_phase() noexcept { previous_ = nullptr; }
  // Remembers that operators used the unit after those before it.
  void used(Unit& unit, Phase phase);
  // Returns the units to gather ahead now that operators use `unit`, or, in the backward, once its
  // gradients are made.
  std::span<Unit* const> ahead_of(const Unit& unit, Phase phase) const;
  std::span<Unit* const> ahead_of_made(const Unit& unit) const;
  // Returns `first` and the units to gather with it: those that followed the last time, as long as
  // all fit together.
  std::vector<Unit*> together_with(Unit& first, Phase phase) const;

  // Call before each collective over `group`: see CollectiveOrder::next().
  void next(const std::shared_ptr<ProcessGroup>& group, const std::string& what);
  // Call after a collective failed.
  void forget() noexcept;

 private:
  const FsdpOptions& options_;
  Unit* previous_ = nullptr;  // the last unit used in this phase
  Phase previous_phase_ = Phase::kForward;
  std::map<const ProcessGroup*, CollectiveOrder> orders_;  // of collectives, by group
};

}  // namespace fsdp::internal
