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

namespace fsdp::formats {

// A part of a file.
struct PendingWrite {
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // keeps the bytes alive
};

class ProcessorLosses {
 public:
  void add(bool lost) {
    if (score_ != 0) --score_;
    if (lost) score_ = score_ + kLoss < kMost ? score_ + kLoss : kMost;
  }
  bool many() const { return score_ > kMany; }

 private:
  // Writes after which a loss is forgotten.  On an idle machine one write in 100 to 200 is
  // interrupted; beside one busy core, one in ten.
  static constexpr unsigned kLoss = 30;
  static constexpr unsigned kMany = 60;
  static constexpr unsigned kMost = 300;
  unsigned score_ = 0;
};

// Lets one thread at a time write to a file.  That thread also writes what the others bring
// meanwhile, and the others go on, unless much is waiting already.
//
// A file system lets one thread write a file, and the others wait by spinning: on a busy machine
// they use up the time that the writing thread needs, and two threads take longer than one.  If
// each sleeps until its turn, every block costs the time to wake a thread: a sixth of the total on
// an idle machine.  On a busy machine sleeping is still worth it: sleeping threads are scheduled
// sooner than one that never sleeps, and a thread that writes for all holds up the others when its
// processor is taken.  So there each thread writes its own blocks.
//
// Thread-safe.
class WriteTurns {
 public:
  // The number of writes that may wait while their threads go on.
  static constexpr std::size_t kMostWaiting = 4;

  // Writes `what` by `write`, which one thread calls at a time, or leaves it to the thread that is
  // writing.  An error in `write` reaches the thread that called it; waiting writes are dropped,
  // and every later call throws it too.
  void write(PendingWrite what, const std::function<void(const PendingWrite&)>& write);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool leave_to_others(Lock& lock, PendingWrite& what);

  std::mutex mutex_;
  std::condition_variable changed_;  // little is waiting, or no thread is writing
  bool writing_ = false;
  std::deque<PendingWrite> waiting_;
  std::size_t threads_waiting_ = 0;
  ProcessorLosses losses_;
  std::exception_ptr failure_;
};

}  // namespace fsdp::formats
