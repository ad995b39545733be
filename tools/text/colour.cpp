// SPDX-License-Identifier: Apache-2.0
#include "tools/text/colour.h"

#include <cstdlib>

namespace fsdp::cli {
namespace {

constexpr const char* kPlain = "\x1b[0m";

const char* sequence_of(Colour colour) {
  switch (colour) {
    case Colour::kRed:
      return "\x1b[31m";
    case Colour::kYellow:
      return "\x1b[33m";
    case Colour::kGreen:
      break;
  }
  return "\x1b[32m";
}

}  // namespace

std::string coloured(std::string_view text, Colour colour, bool shown) {
  if (!shown) return std::string(text);
  return sequence_of(colour) + std::string(text) + kPlain;
}

bool shows_colours(When when, bool terminal) {
  if (when != When::kAuto) return when == When::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  return terminal && (no_color == nullptr || *no_color == '\0');
}

}  // namespace fsdp::cli
