// SPDX-License-Identifier: Apache-2.0
// What the library has of a group beside its public face.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libfsdp/internal/comm/rank_monitor.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

class OfferBoard;
class StoreClient;

// The state of a group's collectives.
struct CallState {
  // Held while a collective is issued: backends number collectives, on all ranks in the same order.
  std::mutex mutex;
  std::uint64_t sequence = 0;
  std::uint64_t text_count = 0;
  bool text_failed = false;           // not all ranks read the last text
  std::shared_ptr<OfferBoard> board;  // null: ranks do not read each other's memory
  // Collectives that nobody waits for any more; the backend's threads may still run them.
  std::vector<c10::intrusive_ptr<c10d::Work>> abandoned;
};

// Every ProcessGroup is one.
class GroupInternals : public ProcessGroup {
 public:
  // Its keys begin with name().  Null if there is no other rank.
  virtual StoreClient* store() const noexcept = 0;
  virtual RankMonitor& monitor() const noexcept = 0;  // of all ranks
  virtual CallState& calls() const noexcept = 0;
};

inline StoreClient* store_of(const ProcessGroup& group) noexcept {
  return static_cast<const GroupInternals&>(group).store();
}
inline RankMonitor& monitor_of(const ProcessGroup& group) noexcept {
  return static_cast<const GroupInternals&>(group).monitor();
}
inline CallState& calls_of(const ProcessGroup& group) noexcept {
  return static_cast<const GroupInternals&>(group).calls();
}

// Numbers the collective that begins, and reports it to the monitor.
// Requires: calls_of(group).mutex is held.
inline void enter_collective(const ProcessGroup& group, const std::string& what) {
  monitor_of(group).entered(group.name(), ++calls_of(group).sequence, what);
}

}  // namespace fsdp::internal
