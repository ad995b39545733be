// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/characters.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>

namespace fsdp::formats {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Unicode 15, in order: Bidi_Control, Default_Ignorable_Code_Point, the categories Zs (but U+0020),
// Zl, Zp, and those of Cf that show nothing; U+2800, a blank of category So.
constexpr Range kHidden[] = {
    {0x00A0, 0x00A0},   {0x00AD, 0x00AD}, {0x034F, 0x034F}, {0x061C, 0x061C},   {0x115F, 0x1160},
    {0x1680, 0x1680},   {0x17B4, 0x17B5}, {0x180B, 0x180F}, {0x2000, 0x200F},   {0x2028, 0x202F},
    {0x205F, 0x206F},   {0x2800, 0x2800}, {0x3000, 0x3000}, {0x3164, 0x3164},   {0xFE00, 0xFE0F},
    {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
    {0xE0000, 0xE0FFF},
};

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {first, 1};
  std::size_t length = 0;
  std::uint32_t code = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    code = first & 0x1FU;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    code = first & 0x0FU;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    code = first & 0x07U;
  } else {
    return {};
  }
  if (at + length > text.size()) return {};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return {};
    code = (code << 6U) | (byte(at + i) & 0x3FU);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (overlong || surrogate || code > 0x10FFFF) return {};
  return {code, length};
}

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0);
}

bool is_hidden(char32_t code) {
  const auto* const behind =
      std::upper_bound(std::begin(kHidden), std::end(kHidden), code,
                       [](char32_t wanted, const Range& range) { return wanted < range.first; });
  return behind != std::begin(kHidden) && code <= std::prev(behind)->last;
}

std::string code_text(char32_t code) {
  std::array<char, 16> buffer{};
  const auto number = static_cast<unsigned>(code);
  std::snprintf(buffer.data(), buffer.size(), code > 0xFFFF ? "\\U%08x" : "\\u%04x", number);
  return buffer.data();
}

}  // namespace fsdp::formats
