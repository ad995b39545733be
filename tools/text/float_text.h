// SPDX-License-Identifier: Apache-2.0
// Floating-point numbers for users.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace fsdp::cli {

// Returns the shortest text that reads back as the same number of this type, with a point or an
// exponent, as in Python.
template <typename Float>
std::string float_text(Float number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace fsdp::cli
