// SPDX-License-Identifier: Apache-2.0
// Text for people: names from files made safe to print, sizes, shapes, natural order.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

namespace fsdp::formats {

// The arguments streamed one after the other: cat("at byte ", 12) == "at byte 12".
template <typename... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  // Otherwise a stream that runs out of memory would return a truncated text.
  out.exceptions(std::ios::badbit);
  (out << ... << args);
  return std::move(out).str();
}

// Returns `text` without anything that a terminal would act on: control characters, DEL, C1
// controls and invalid UTF-8 become \xNN, a backslash \\.  Other UTF-8 stays.
std::string escape(std::string_view text);

// 'text', escaped, and cut after `limit` characters with "..." at the end: for untrusted names in
// messages.
std::string quote(std::string_view text, std::size_t limit = 80);

// Bytes for a person: 0 B, 512 B, 1.5 KiB, 2.0 GiB.
std::string human_bytes(std::uint64_t bytes);

// 1234567 -> 1,234,567.
std::string group_digits(std::uint64_t number);

// Eight hexadecimal digits, as checksums are shown.
std::string hex32(std::uint32_t number);

// [2, 3]; [] for rank 0.
std::string shape_text(std::span<const std::int64_t> shape);

// Parses a number of bytes: "256MiB", "5GB", "4096", "1.5G".  K, M, G, T and KiB.. are powers of
// 1024; KB, MB, GB, TB powers of 1000.  Throws: kUsage.
std::uint64_t parse_size(std::string_view text);

// Returns whether a sorts before b when runs of digits count as numbers: "layers.2" before
// "layers.10".
bool natural_less(std::string_view a, std::string_view b);

// Returns whether `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view text);

// The candidate nearest to `word` by edit distance, empty if none is near enough.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace fsdp::formats
