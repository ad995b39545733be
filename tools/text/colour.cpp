// SPDX-License-Identifier: Apache-2.0
#include "tools/text/colour.h"

#include <cstdlib>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {

std::string coloured(std::string_view text, Colour colour, bool shown) {
  if (!shown) return std::string(text);
  return formats::cat("\x1b[", static_cast<int>(colour), "m", text, "\x1b[0m");
}

bool shows_colours(When when, bool terminal) {
  if (when != When::kAuto) return when == When::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  return terminal && (no_color == nullptr || *no_color == '\0') &&
         (kind == nullptr || std::string_view(kind) != "dumb");
}

}  // namespace fsdp::cli
