// SPDX-License-Identifier: Apache-2.0
// Finds how many bytes are best requested at once: as many as arrive in the time of a request, and
// some more.  Fewer leave the link idle.  With more, requests only wait for each other, take
// processor time from readers, and use memory that no cache holds.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::formats {

// Learns from every answered request, since links and servers change.  Not thread-safe.
class Pace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Records a request for `bytes` bytes, made at `begin` and answered at `end`.  Ignores requests
  // for less than `whole` bytes, whose times differ.
  void answered(std::uint64_t bytes, Time begin, Time end, std::uint64_t whole);
  // Returns the limit, at least kFewest times `whole`; no limit before the first answer.
  std::uint64_t bytes_at_once(std::uint64_t whole) const;

  static constexpr std::uint64_t kFewest = 8;

 private:
  // Consecutive requests.
  struct Spell {
    std::uint64_t requests = 0;
    std::uint64_t bytes = 0;
    Time begin{};
    double fastest = 0;  // seconds
  };
  void learn(double rate, double fastest);

  Spell spell_;
  Time last_end_{};
  double limit_ = 0;  // bytes at once; 0: unknown
  bool measured_ = false;
  // The limit and rate before the last spell, if that spell tried a higher limit.
  double limit_before_ = 0;
  double rate_before_ = 0;
  // After a higher limit brought no higher rate: the number of spells in which none is tried,
  // unless requests take more than twice `rest_seconds_`.
  unsigned rest_ = 0;
  double rest_seconds_ = 0;
};

}  // namespace fsdp::formats
