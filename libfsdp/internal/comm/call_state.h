// SPDX-License-Identifier: Apache-2.0
// The state that a group keeps about its collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libfsdp/process_group.h"

namespace fsdp::internal {

class OfferBoard;

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

// Numbers the collective that begins, and reports it to the monitor.
// Requires: group.calls().mutex is held.
void enter_collective(ProcessGroup& group, const std::string& what);

// Returns whether waiting in this group is in vain: another rank failed, or the store's server, a
// rank of this group, has ended.
bool others_failed(ProcessGroup& group) noexcept;

// Throws: PeerError "<what>: <why>; <the monitor's diagnosis>", after telling the monitor that this
// rank lost others.
[[noreturn]] void throw_lost(ProcessGroup& group, const std::string& what, const std::string& why);

}  // namespace fsdp::internal
