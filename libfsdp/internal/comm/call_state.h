// SPDX-License-Identifier: Apache-2.0
// What a group remembers of its collectives.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libfsdp/process_group.h"

namespace fsdp {

struct CallState {
  // Held while a collective is issued: backends number them, in the order that every rank shares.
  std::mutex mutex;
  std::uint64_t sequence = 0;
  std::uint64_t text_count = 0;
  bool text_failed = false;  // not all ranks read the last text
  // Collectives that nobody will wait for any more; the backend's threads may still be in them.
  std::vector<c10::intrusive_ptr<c10d::Work>> abandoned;
};

// Numbers the collective that begins, and has the monitor know of it.
// Requires: group.calls().mutex is held.
void enter_collective(ProcessGroup& group, const std::string& what);

// Throws: PeerError "<what>: <why>; <the monitor's diagnosis>", once the monitor knows that this
// rank lost others.
[[noreturn]] void throw_lost(ProcessGroup& group, const std::string& what, const std::string& why);

}  // namespace fsdp
