// SPDX-License-Identifier: Apache-2.0
// Ensures that every rank is about to run the same gather or reduction.
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
#include <memory>
#include <string>
#include <unordered_map>

namespace fsdp {
class ProcessGroup;
}  // namespace fsdp

namespace fsdp::internal {

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

}  // namespace fsdp::internal
