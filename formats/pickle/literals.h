// SPDX-License-Identifier: Apache-2.0
// How protocol 0 writes texts and numbers: as lines, in Python's own notation.
// Source: CPython's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Each takes a line without its end, and gives nothing where it is not such a literal.

// UNICODE: each byte is a character; a backslash and u with four digits of base 16, or U with
// eight, is another one.  As UTF-8.
std::optional<std::string> raw_unicode(std::string_view line);
// STRING: a literal of Python in quotes.
std::optional<std::string> quoted_text(std::string_view line);
// The slot of PUT and GET: decimal, as Python's int() reads it.
std::optional<std::uint64_t> slot_number(std::string_view line);

}  // namespace fsdp::formats
