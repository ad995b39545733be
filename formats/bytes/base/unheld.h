// SPDX-License-Identifier: Apache-2.0
// The last alternative of a std::variant whose copies may run out of memory.
#pragma once

#include <compare>

namespace fsdp::formats {

// Never constructed: a variant never holds one.
//
// libstdc++ assumes that a variant of numbers, strings and vectors always has a value.  With GCC
// 12, if copying such a variant throws, an alternative that was never constructed is destroyed: the
// process crashes instead of reporting that memory ran out.  A type outside libstdc++'s list, such
// as this one, makes it check first.
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
