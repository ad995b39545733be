// SPDX-License-Identifier: Apache-2.0
// Warns of long waits before they end in an error, and names the ranks that the others wait for.
#pragma once

#include <chrono>
#include <string>

#include "libfsdp/process_group.h"

namespace fsdp::internal {

class LongWait {
 public:
  // Begins a wait for the collective `what`.  Lifetime: the arguments outlive this object.
  LongWait(ProcessGroup& group, const std::string& what);

  // Call about once a second while waiting.  Warns once the wait takes ProcessGroup::warn_after(),
  // and again each time it has doubled.
  void look();

 private:
  using Clock = std::chrono::steady_clock;

  ProcessGroup& group_;
  const std::string& what_;
  const Clock::time_point began_ = Clock::now();
  Clock::duration next_;
};

}  // namespace fsdp::internal
