// SPDX-License-Identifier: Apache-2.0
// Colours of a terminal.
#pragma once

#include <string>
#include <string_view>

#include "tools/base/common.h"

namespace fsdp::cli {

// The numbers are those of terminals (ECMA-48).
enum class Colour { kRed = 31, kGreen = 32, kYellow = 33 };

// Returns `text` in that colour; unchanged unless `shown`.
std::string coloured(std::string_view text, Colour colour, bool shown);

// Returns whether a stream gets colours: with kAuto a terminal does, unless NO_COLOR is set to a
// non-empty value (https://no-color.org) or TERM is "dumb".
bool shows_colours(When when, bool terminal);

}  // namespace fsdp::cli
