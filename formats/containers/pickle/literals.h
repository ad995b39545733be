// SPDX-License-Identifier: Apache-2.0
// Texts and numbers of protocol 0: lines in Python's own notation.
// Source: CPython's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Each takes a line without its end, and returns nothing if it is not such a literal.

// UNICODE: each byte is a character; a backslash and u with four hexadecimal digits, or U with
// eight, stands for another one.  Returns UTF-8.
std::optional<std::string> raw_unicode(std::string_view line);
// STRING: a Python literal in quotes.
std::optional<std::string> quoted_text(std::string_view line);
// The slot of PUT and GET: decimal, as read by Python's int().
std::optional<std::uint64_t> slot_number(std::string_view line);

}  // namespace fsdp::formats
