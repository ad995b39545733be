// SPDX-License-Identifier: Apache-2.0
// A vector clock: says of every stream of the process how much of its work is known to be over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::test::sim {

class Clock {
 public:
  // Returns the time of the last known work of a stream; 0: none is known.
  std::uint32_t at(int stream) const noexcept {
    const auto index = static_cast<std::size_t>(stream);
    return index < times_.size() ? times_[index] : 0;
  }
  // Learns all that `other` knows.
  void merge(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (std::size_t i = 0; i < other.times_.size(); ++i)
      times_[i] = std::max(times_[i], other.times_[i]);
    over_at_ = std::max(over_at_, other.over_at_);
  }
  // Returns the time of the next work of a stream.
  std::uint32_t tick(int stream) {
    const auto index = static_cast<std::size_t>(stream);
    if (times_.size() <= index) times_.resize(index + 1);
    ++over_at_;
    return ++times_[index];
  }
  // Returns when all known work is over, in seconds, on a device where every kernel takes one
  // second and starts as soon as it may.
  std::int64_t over_at() const noexcept { return over_at_; }

 private:
  std::vector<std::uint32_t> times_;
  std::int64_t over_at_ = 0;
};

}  // namespace fsdp::test::sim
