// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/sender_pool.h"

#include <iterator>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/threads.h"

namespace fsdp::formats {
namespace {

// The time between looks for a signal.
constexpr std::chrono::milliseconds kPoll{100};

Error interruption() {
  return {ErrorCode::kInterrupted, "interrupted"};
}

}  // namespace

SenderPool::~SenderPool() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  waiting_.clear();
  work_.notify_all();
}

void SenderPool::submit(std::function<void()> job) {
  Lock lock(mutex_);
  wait_until(lock, [&] { return waiting_.size() < kThreads; });
  add(lock, std::move(job));
}

void SenderPool::submit_more(std::function<void()> job) {
  Lock lock(mutex_);
  add(lock, std::move(job));
}

void SenderPool::wait() {
  Lock lock(mutex_);
  wait_until(lock, [&] { return waiting_.empty() && running_ == 0; });
}

bool SenderPool::stop(std::chrono::milliseconds time) noexcept {
  Lock lock(mutex_);
  stopped_ = true;
  waiting_.clear();
  work_.notify_all();
  progress_.notify_all();
  return progress_.wait_for(lock, time, [&] { return running_ == 0; });
}

void SenderPool::add(Lock& lock, std::function<void()> job) {
  if (stopped_) return;
  waiting_.push_back(std::move(job));
  if (threads_.size() < kThreads && threads_.size() < running_ + waiting_.size()) {
    auto started = start_helpers(1, [this](std::size_t) {
      Lock mine(mutex_);
      for (;;) {
        work_.wait(mine, [&] { return stopped_ || !waiting_.empty(); });
        if (stopped_) return;
        do_next(mine);
      }
    });
    std::ranges::move(started, std::back_inserter(threads_));
  }
  // If no thread could be started, the caller does the job.
  if (threads_.empty()) return do_next(lock);
  work_.notify_one();
}

void SenderPool::wait_until(Lock& lock, const std::function<bool()>& done) {
  for (;;) {
    if (failure_) std::rethrow_exception(failure_);
    if (stopped_) throw interruption();
    if (done()) return;
    if (interrupted()) throw interruption();
    progress_.wait_for(lock, kPoll);
  }
}

// Does the oldest job; unlocks meanwhile.
void SenderPool::do_next(Lock& lock) {
  const std::function<void()> job = std::move(waiting_.front());
  waiting_.pop_front();
  if (!failure_ && interrupted()) failure_ = std::make_exception_ptr(interruption());
  if (failure_) return progress_.notify_all();
  ++running_;
  lock.unlock();
  std::exception_ptr failure;
  try {
    job();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  --running_;
  if (failure && !failure_) failure_ = failure;
  progress_.notify_all();
}

}  // namespace fsdp::formats
