// SPDX-License-Identifier: Apache-2.0
// How many bytes are best requested at once: as many as come in the time that a request takes, and
// some more.  Fewer leave the link idle; beyond, requests only wait for each other, take the
// processors from who reads, and use memory that no cache holds.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::formats {

// Learns from the requests that were answered, and forgets how it was before: links and servers
// change.  Not thread-safe.
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
    std::chrono::duration<double> fastest{0};  // of those for whole bytes; 0: there was none
    double rate = 0;                           // bytes a second; 0: not known
  };
  Spell current_;
  Spell last_;  // the one before
  Time last_end_{};
};

}  // namespace fsdp::formats
