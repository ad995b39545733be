// SPDX-License-Identifier: Apache-2.0
// Tells of long waits before they end in an error: which rank it is that all wait for.
#pragma once

#include <chrono>
#include <string>

#include "libfsdp/process_group.h"

namespace fsdp {

class LongWait {
 public:
  // A wait for the collective `what` begins.  Lifetime: that of the arguments.
  LongWait(ProcessGroup& group, const std::string& what);

  // For whoever waits, about once a second.  Warns once the wait takes ProcessGroup::warn_after(),
  // and again each time it has doubled.
  void look();

 private:
  using Clock = std::chrono::steady_clock;

  ProcessGroup& group_;
  const std::string& what_;
  const Clock::time_point began_ = Clock::now();
  Clock::duration next_;
};

}  // namespace fsdp
