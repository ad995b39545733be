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
  // Else a stream that runs out of memory gives the beginning of its text for the whole.
  out.exceptions(std::ios::badbit);
  (out << ... << args);
  return std::move(out).str();
}

// `text` without anything a terminal would act on: control characters, DEL, C1 controls and invalid
// UTF-8 become \xNN, a backslash \\.  Other UTF-8 stays.
std::string escape(std::string_view text);

// 'text', escaped, and cut after `limit` characters with "..." behind: for untrusted names in
// messages.
std::string quote(std::string_view text, std::size_t limit = 80);

// Bytes for a person: 0 B, 512 B, 1.5 KiB, 2.0 GiB.
std::string human_bytes(std::uint64_t bytes);

// 1234567 -> 1,234,567.
std::string group_digits(std::uint64_t number);

// Eight digits of base 16, as checksums are shown.
std::string hex32(std::uint32_t number);

// [2, 3]; [] for rank 0.
std::string shape_text(std::span<const std::int64_t> shape);

// Bytes that "256MiB", "5GB", "4096", "1.5G" mean.  K, M, G, T alone and KiB.. are powers of 1024;
// KB, MB, GB, TB powers of 1000.  Throws: kUsage.
std::uint64_t parse_size(std::string_view text);

// Whether a stands before b where runs of digits count as numbers: "layers.2" before "layers.10".
bool natural_less(std::string_view a, std::string_view b);

// Whether `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view text);

// The candidate nearest to `word` by edit distance, empty where none is near enough to be meant.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace fsdp::formats
