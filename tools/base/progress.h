// SPDX-License-Identifier: Apache-2.0
// A line on the terminal that shows the progress of a long task.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace fsdp::cli {

// Shows bytes, rate and the time left, rewritten in place a few times a second; erased by the
// destructor.  Used by one thread at a time.
class Progress {
 public:
  // `total_bytes` 0: unknown.  Prints nothing unless `shown`.
  Progress(std::ostream& err, bool shown, std::string what, std::uint64_t total_bytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  void update(std::uint64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  std::ostream& err_;
  bool shown_;
  std::string what_;
  std::uint64_t total_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_;
  bool printed_ = false;
};

}  // namespace fsdp::cli
