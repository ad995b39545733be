// SPDX-License-Identifier: Apache-2.0
// Values as people type them on a command line.
#pragma once

#include <optional>
#include <string_view>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Reads `text` as a value of the type of `like`; returns nothing if it is not one:
//   bool: True, False, true, false       int: a decimal number within 64 bits
//   float: a number, whole ones too, inf, -inf, nan       str: the text itself
//   None: None
//   a list or tuple: the same number of such items between its brackets, "(0.9, 0.95)", in which a
//   str may stand in quotes, "['a, b', c]"
// Other types: nothing.
std::optional<Value> value_like(const Value& like, std::string_view text);

// Reads `text` by itself: None, True, False, an int, a float, else the text.
Value value_of_text(std::string_view text);

// Returns words for the type: "None", "a bool", "an int", "a float", "a str", "a list", ...
std::string_view type_words(const Value& value);

}  // namespace fsdp::formats
