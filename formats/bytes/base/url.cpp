// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/url.h"

#include <algorithm>
#include <cctype>

namespace fsdp::formats {

bool is_url(std::string_view text) {
  const std::size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(scheme), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  });
}

}  // namespace fsdp::formats
