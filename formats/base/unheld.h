// SPDX-License-Identifier: Apache-2.0
// The last alternative of a std::variant whose copies may run out of memory.
#pragma once

#include <compare>

namespace fsdp::formats {

// No variant ever holds one.
//
// libstdc++ takes a variant of numbers, strings and vectors for one that always has a value.  With
// GCC 12, where copying such a one throws, an alternative is destroyed that was never made: the
// process crashes instead of reporting that memory ran out.  A type that is not in its list, as
// this one, has it look first.
class Unheld {
 public:
  Unheld() = delete;
  Unheld(const Unheld& /*other*/) noexcept {}
  Unheld& operator=(const Unheld& /*other*/) noexcept { return *this; }
  friend bool operator==(const Unheld&, const Unheld&) noexcept { return true; }
  friend std::strong_ordering operator<=>(const Unheld&, const Unheld&) noexcept {
    return std::strong_ordering::equal;
  }
};

}  // namespace fsdp::formats
