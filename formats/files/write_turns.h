// SPDX-License-Identifier: Apache-2.0
// Turns of the threads that write to one file.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "formats/base/processor_losses.h"

namespace fsdp::formats {

// A part of a file.
struct PendingWrite {
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // the bytes are there as long as it is held
};

// Lets one thread at a time write to a file: it writes what the others bring meanwhile too, and
// they go on, unless much is waiting already.
//
// A file system lets one thread write a file, and the others wait for it by spinning: beside other
// work they spin away the time that the one that writes would need, and two threads take longer
// than one.  Where each sleeps until its turn, every block costs the time to wake somebody: a sixth
// of the whole on an idle machine.  Beside other work that is well spent all the same, for threads
// that sleep are let in sooner than one that never does and holds up all of them when its
// processor is taken: then each writes its own.
//
// Thread-safe.
class WriteTurns {
 public:
  // So many writes wait while their threads go on.
  static constexpr std::size_t kMostWaiting = 4;

  // Writes `what` by `write`, which one thread calls at a time, or leaves it to the thread that is
  // writing.  An error in `write` reaches the thread that called it; what waited is let go, and
  // every later call throws it too.
  void write(PendingWrite what, const std::function<void(const PendingWrite&)>& write);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool leave_to_others(Lock& lock, PendingWrite& what);

  std::mutex mutex_;
  std::condition_variable changed_;  // little is waiting, or nobody is writing
  bool writing_ = false;
  std::deque<PendingWrite> waiting_;
  std::size_t threads_waiting_ = 0;
  ProcessorLosses losses_;
  std::exception_ptr failure_;
};

}  // namespace fsdp::formats
