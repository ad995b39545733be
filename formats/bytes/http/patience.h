// SPDX-License-Identifier: Apache-2.0
// How long and how often a request is tried again.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// From the environment, read once: FSDP_CKPT_NETWORK_TRIES, FSDP_CKPT_NETWORK_SECONDS and
// FSDP_CKPT_STALL_SECONDS.
struct NetworkLimits {
  unsigned tries = 10;
  std::chrono::seconds deadline{120};  // between two pieces of data that came
  std::chrono::seconds stall{20};      // without a byte, until a request counts as lost
};
// Throws: kUsage for a value that is not a positive number.
const NetworkLimits& network_limits();

// Returns the time before try number `tried` + 1: between half of 0.1 s * 2^(tried - 1) and all of
// it, at most 10 s.  `chance`: a random number from 0 to 1, so that many clients do not return at
// once.
std::chrono::milliseconds backoff(unsigned tried, double chance);

// Counts the tries and the time of one operation.
class Patience {
 public:
  // `place`: the URL that messages begin with.
  explicit Patience(std::string place, const NetworkLimits& limits = network_limits());

  const std::string& place() const { return place_; }
  const NetworkLimits& limits() const { return limits_; }
  // Returns the time until the deadline; at least 1 ms.
  std::chrono::milliseconds left() const;
  // Called when data came: tries and deadline begin anew.
  void progressed();
  // Waits after a try that failed because of `why`.  `tries`: how often to try in all after such a
  // failure; `at_least`: how long the server asks to wait.
  // Throws: kNetwork if that was the last try, or the deadline would pass; kInterrupted.
  void wait(const std::string& why, unsigned tries = 1000,
            std::optional<std::chrono::seconds> at_least = std::nullopt);

 private:
  std::string place_;
  NetworkLimits limits_;
  std::chrono::steady_clock::time_point since_;
  unsigned tried_ = 0;
};

}  // namespace fsdp::formats
