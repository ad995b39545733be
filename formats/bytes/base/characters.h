// SPDX-License-Identifier: Apache-2.0
// The characters of UTF-8 text, and those of them that a person does not see.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp::formats {

struct Character {
  char32_t code = 0;
  std::size_t length = 0;  // in bytes; 0: not well-formed UTF-8
};

// The character whose first byte stands at `at`.  Overlong forms, surrogates and codes beyond
// U+10FFFF are not characters.
// Requires: at < text.size().
Character character_at(std::string_view text, std::size_t at);

// Control characters: U+0000 to U+001F, U+007F to U+009F.
bool is_control(char32_t code);

// Characters that show nothing, that show something else than they are, or that turn the text
// around them: blanks other than U+0020, separators of lines, marks and overrides of direction,
// joiners, variation selectors, tags.  Two names that differ in these alone look alike.
bool is_hidden(char32_t code);

// Writes a character as Python escapes it in a string: \u202e, \U000e0041.
std::string code_text(char32_t code);

}  // namespace fsdp::formats
