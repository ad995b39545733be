// SPDX-License-Identifier: Apache-2.0
// Threads that make the requests of one output to a store.
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

// Begins no more jobs after the first one that fails, or once a signal asks to stop.
// Thread-safe.
class SenderPool {
 public:
  // A store answers after milliseconds, whatever the bandwidth, so several requests are under way
  // at once.
  static constexpr std::size_t kThreads = 8;

  // Waits for the jobs that have begun; drops the others.
  ~SenderPool();

  // Lets a thread do the job.  Waits while kThreads jobs wait to be begun.
  // Throws: kInterrupted; what a job threw.
  void submit(std::function<void()> job);
  // Like submit, for a job that another job submits: does not wait, which could deadlock.
  void submit_more(std::function<void()> job);
  // Returns when all jobs are done.  Throws: like submit.
  void wait();
  // Drops the jobs that have not begun and waits for the others; returns whether they ended in
  // `time`.
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
