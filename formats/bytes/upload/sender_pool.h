// SPDX-License-Identifier: Apache-2.0
// Threads that make requests to a store, for everything of one output.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fsdp::formats {

// After the first job that fails, or once a signal asked to stop, no job is begun any more.
// Thread-safe.
class SenderPool {
 public:
  // A store answers after milliseconds, whatever the bandwidth, so several requests are under way
  // at once.
  static constexpr std::size_t kThreads = 8;

  SenderPool() = default;
  SenderPool(const SenderPool&) = delete;
  SenderPool& operator=(const SenderPool&) = delete;
  // Waits for the jobs that were begun; the others are dropped.
  ~SenderPool();

  // Lets a thread do it.  Waits while kThreads jobs wait to be begun.
  // Throws: kInterrupted; what a job threw.
  void submit(std::function<void()> job);
  // The same for a job that a job hands in: does not wait, which could be for ever.
  void submit_more(std::function<void()> job);
  // Returns when all jobs were done.  Throws: like submit.
  void wait();
  // Drops the jobs that were not begun and waits for the others; returns whether they ended in
  // time.
  bool stop(std::chrono::milliseconds time) noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  void add(Lock& lock, std::function<void()> job);
  void wait_until(Lock& lock, const std::function<bool()>& done);
  void do_next(Lock& lock);

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<std::function<void()>> waiting_;
  std::size_t running_ = 0;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // last: they use all above
};

}  // namespace fsdp::formats
