// SPDX-License-Identifier: Apache-2.0
// How many bytes are best requested at once: as many as come in the time that a request takes, and
// some more.  Fewer leave the link idle; beyond, requests only wait for each other, take the
// processors from who reads, and use memory that no cache holds.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::formats {

// Learns from the requests that were answered, and goes on learning: links and servers change.  Not
// thread-safe.
class Pace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A request for so many bytes was made at `begin` and answered at `end`.  Those for less than
  // `whole` bytes are ignored: the time that they take is another one.
  void answered(std::uint64_t bytes, Time begin, Time end, std::uint64_t whole);
  // At least kFewest times `whole`; no limit as long as nothing is known.
  std::uint64_t bytes_at_once(std::uint64_t whole) const;

  static constexpr std::uint64_t kFewest = 8;

 private:
  // Some requests, one after the other.
  struct Spell {
    std::uint64_t requests = 0;
    std::uint64_t bytes = 0;
    Time begin{};
    double fastest = 0;  // seconds
  };
  void learn(double rate, double fastest);

  Spell spell_;
  Time last_end_{};
  double limit_ = 0;  // bytes at once; 0: nothing is known
  bool measured_ = false;
  // Of the last spell, if it was one with more at once than before: what there was before it.
  double limit_before_ = 0;
  double rate_before_ = 0;
  // More at once brought no more bytes: for so many spells it is not tried again, unless requests
  // take longer than this.
  unsigned rest_ = 0;
  double rest_seconds_ = 0;
};

}  // namespace fsdp::formats
