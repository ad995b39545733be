// SPDX-License-Identifier: Apache-2.0
// Texts and numbers of pickle streams that have a notation of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/containers/pickle/value.h"

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

// Returns a kInt if it fits, else a kBigInt.  No bytes mean 0; bytes that only repeat the sign are
// dropped.
Value decode_long(std::string_view bytes);

std::string encode_long(std::int64_t number);

}  // namespace fsdp::formats
