// SPDX-License-Identifier: Apache-2.0
// The characters of UTF-8 text, and which of them are invisible.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp::formats {

struct Character {
  char32_t code = 0;
  std::size_t length = 0;  // in bytes; 0: not well-formed UTF-8
};

// Returns the character whose first byte is at `at`.  Overlong forms, surrogates and codes beyond
// U+10FFFF are not characters.
// Requires: at < text.size().
Character character_at(std::string_view text, std::size_t at);

// Returns whether the code is a control character: U+0000 to U+001F, U+007F to U+009F.
bool is_control(char32_t code);

// Returns whether the character shows nothing, looks like another one, or reverses the text around
// it: blanks other than U+0020, line separators, direction marks and overrides, joiners, variation
// selectors, tags.  Two names that differ only in such characters look alike.
bool is_hidden(char32_t code);

// Returns a character as Python escapes it in a string: \u202e, \U000e0041.
std::string code_text(char32_t code);

}  // namespace fsdp::formats
