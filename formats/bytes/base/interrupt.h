// SPDX-License-Identifier: Apache-2.0
// A request to stop, made by a signal handler and noticed by loops, so that destructors remove
// unfinished work.
#pragma once

#include <atomic>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// The signal that asked to stop, 0 if none has.  A handler stores its number here and does nothing
// else.
inline std::atomic<int> interrupt_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait for a lock");

inline bool interrupted() noexcept {
  return interrupt_signal.load(std::memory_order_relaxed) != 0;
}

// Throws: kInterrupted if a signal asked to stop.
inline void throw_if_interrupted() {
  if (interrupted()) throw Error(ErrorCode::kInterrupted, "interrupted");
}

}  // namespace fsdp::formats
