// SPDX-License-Identifier: Apache-2.0
// What waits for other ranks have in common: they end with an error that says why, and warn before.
#pragma once

#include <chrono>
#include <string>

#include <c10/core/Event.h>

#include "libfsdp/process_group.h"

namespace fsdp::internal {

// Returns whether waiting in this group is in vain: another rank failed, or the store's server, a
// rank of this group, has ended.
bool others_failed(const ProcessGroup& group) noexcept;

// Throws: PeerError "<what>: <why>; <the monitor's diagnosis>", after telling the monitor that this
// rank lost others.
[[noreturn]] void throw_lost(const ProcessGroup& group, const std::string& what,
                             const std::string& why);

// Warns of a long wait before it ends in an error, and names the ranks that the others wait for.
class LongWait {
 public:
  // Begins a wait for the collective `what`.  Lifetime: the arguments outlive this object.
  LongWait(const ProcessGroup& group, const std::string& what)
      : group_(group), what_(what), next_(group.warn_after()) {}

  // Call about once a second while waiting.  Warns once the wait takes ProcessGroup::warn_after(),
  // and again each time it has doubled.
  void look();

 private:
  using Clock = std::chrono::steady_clock;

  const ProcessGroup& group_;
  const std::string& what_;
  const Clock::time_point began_ = Clock::now();
  Clock::duration next_;
};

// Has the host wait until the device has reached the event.  The device's streams may hold a
// collective that another rank never joins, so this checks the other ranks, too.  `what` says what
// the host is about to do: "all-gather of blocks.1".
// Throws: what throw_lost throws, if a rank failed, or if the wait takes longer than the group's
// timeout.
void wait_for_event(const ProcessGroup& group, const c10::Event& event, const std::string& what);

}  // namespace fsdp::internal
