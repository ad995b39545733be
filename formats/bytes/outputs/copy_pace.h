// SPDX-License-Identifier: Apache-2.0
// Measures whether copies into the page cache are quick: see Note [page cache or disk] in
// cache_use.h.
#pragma once

#include <cstddef>

namespace fsdp::formats {

// Copies into free memory reach 4 GB/s and more, into memory that must be reclaimed first 0.5 GB/s.
// At the start one slow block decides; after quick ones it takes two.
class CopyPace {
 public:
  // Records that copying `bytes` took `seconds` of processor time.
  void add(std::size_t bytes, double seconds) {
    constexpr double kWeight = 0.25;
    seconds_a_byte_ += kWeight * (seconds / static_cast<double>(bytes) - seconds_a_byte_);
  }
  bool slow() const {
    constexpr double kSlow = 1 / 1.5e9;
    return seconds_a_byte_ > kSlow;
  }

 private:
  double seconds_a_byte_ = 1 / 4e9;
};

}  // namespace fsdp::formats
