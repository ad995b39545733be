// SPDX-License-Identifier: Apache-2.0
// That every rank is about to run the same gather or reduction.
//
// Note [order of collectives]: ranks whose forwards differ gather units of different sizes, and
// Gloo ends the process where a message is longer than the receiver's buffer: a check of what
// arrived comes too late.  So ranks agree first.  They need not talk for it most of the time: what
// follows on the last two collectives was agreed on when it was new, every rank remembers it, and
// one that goes on alike sends at once.  A rank that goes another way asks all others through the
// store, which is safe whatever they do: they ask too, all of them going that way, and it is
// remembered; or they name another collective, and all ranks throw; or they wait in what was
// expected, and the one that asks finds that in their notes (see rank_monitor.h), throws, and so
// ends them.
//
// Ranks that share a copy of the parameters keep one order of everything; the copies of a hybrid
// strategy keep one of their reductions, which is all that they do together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace fsdp {

class ProcessGroup;

class CollectiveOrder {
 public:
  explicit CollectiveOrder(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Before each of them.  `what` names it, and all units it is of: their sizes follow from it.
  // Throws: c10::Error naming the ranks that are about to run another one, PeerError.
  void next(const std::string& what);
  // A collective failed: what this rank remembers may not be what others do.
  void forget() noexcept;

 private:
  void agree(const std::string& what);

  const std::shared_ptr<ProcessGroup> group_;
  std::unordered_map<std::string, std::string> after_;  // by the two before
  std::string before_last_;
  std::string last_;
  std::uint64_t forgotten_ = 0;  // ranks that forgot another time than others all forget
};

}  // namespace fsdp
