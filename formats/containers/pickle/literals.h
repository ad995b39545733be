// SPDX-License-Identifier: Apache-2.0
// Texts and numbers of protocol 0: lines in Python's own notation.
// Source: CPython's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Each function takes a line without its end, and returns nothing if the line is not such a
// literal.

// UNICODE: each byte is a character, except escapes: \u with four hexadecimal digits, \U with
// eight.  Returns UTF-8.
std::optional<std::string> raw_unicode(std::string_view line);
// STRING: a Python literal in quotes.
std::optional<std::string> quoted_text(std::string_view line);
// The slot of PUT and GET: decimal, as read by Python's int().
std::optional<std::uint64_t> slot_number(std::string_view line);

}  // namespace fsdp::formats
