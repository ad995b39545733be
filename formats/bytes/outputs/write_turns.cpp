// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/write_turns.h"

#include <sys/resource.h>

#include <utility>

namespace fsdp::formats {
namespace {

// Returns how often this thread lost its processor.
long count_losses() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

void WriteTurns::write(PendingWrite what, const std::function<void(const PendingWrite&)>& write) {
  Lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (writing_ && leave_to_others(lock, what)) return;
  writing_ = true;
  while (true) {
    lock.unlock();
    const long before = count_losses();
    std::exception_ptr failure;
    try {
      write(what);
    } catch (...) {
      failure = std::current_exception();
    }
    const bool lost = count_losses() != before;
    // Another thread may be waiting for the memory.
    what = {};
    lock.lock();
    losses_.add(lost);
    if (failure) {
      failure_ = failure;
      waiting_.clear();
    }
    if (waiting_.empty() || (threads_waiting_ != 0 && losses_.many())) break;
    what = std::move(waiting_.front());
    waiting_.pop_front();
    if (waiting_.size() == kMostWaiting / 2) changed_.notify_all();
  }
  writing_ = false;
  if (threads_waiting_ != 0) changed_.notify_all();
  if (failure_) std::rethrow_exception(failure_);
}

// Returns true if another thread writes `what`.  Otherwise `what` then holds the write that this
// thread must do.
bool WriteTurns::leave_to_others(Lock& lock, PendingWrite& what) {
  waiting_.push_back(std::move(what));
  if (!losses_.many() && waiting_.size() <= kMostWaiting) return true;
  ++threads_waiting_;
  changed_.wait(lock, [&] {
    return !writing_ || waiting_.size() <= (losses_.many() ? 0 : kMostWaiting / 2);
  });
  --threads_waiting_;
  if (failure_) std::rethrow_exception(failure_);
  if (writing_ || waiting_.empty()) return true;
  what = std::move(waiting_.front());
  waiting_.pop_front();
  return false;
}

}  // namespace fsdp::formats
