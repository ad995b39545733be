// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/text.h"

#include <cstdint>
#include <cstring>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Returns the length of the well-formed sequence at the start of `text`; 0 if it is malformed.
std::size_t sequence_length(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text[0]);
  const auto is_within = [&](std::size_t at, unsigned low, unsigned high) {
    if (at >= text.size()) return false;
    const auto byte = static_cast<unsigned char>(text[at]);
    return byte >= low && byte <= high;
  };
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return is_within(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;  // not overlong; surrogates (ED A0..BF) pass
    return is_within(1, low, 0xBF) && is_within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;  // at most U+10FFFF
    const bool is_good =
        is_within(1, low, high) && is_within(2, 0x80, 0xBF) && is_within(3, 0x80, 0xBF);
    return is_good ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool is_ascii(std::string_view text) noexcept {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
  std::uint64_t seen = 0;
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    seen |= word;
  }
  for (; at < text.size(); ++at) seen |= static_cast<unsigned char>(text[at]);
  return (seen & kHighBits) == 0;
}

bool is_python_utf8(std::string_view text) noexcept {
  if (is_ascii(text)) return true;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool is_global_name(std::string_view text) {
  if (text.empty() || text.front() == '.' || text.back() == '.') return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7F) return false;
    if (byte == '.' && text[i + 1] == '.') return false;
  }
  return is_utf8(text);
}

std::string_view protocol_2_module(std::string_view module) {
  if (module == "builtins") return "__builtin__";
  if (module == "copyreg") return "copy_reg";
  return module;
}

}  // namespace fsdp::formats
