// SPDX-License-Identifier: Apache-2.0
// Text for people: names from files made safe to print, sizes, shapes, natural order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/bytes/base/cat.h"

namespace fsdp::formats {

// Returns `text` without the blanks and line ends around it.
std::string_view trimmed(std::string_view text);

// Returns the words one after the other, with `between` between them.
std::string joined(std::span<const std::string> words, std::string_view between);

// Collects names for a message, of which it tells the first `most`: "0, 1, 2 and 5 more".
class SomeNames {
 public:
  explicit SomeNames(std::size_t most = SIZE_MAX) : most_(most) {}
  template <typename Name>
  void add(const Name& name) {
    if (++count_ <= most_) told_ += cat(count_ == 1 ? "" : ", ", name);
  }
  std::size_t count() const { return count_; }
  std::string text() const {
    return count_ <= most_ ? told_ : cat(told_, " and ", count_ - most_, " more");
  }

 private:
  std::size_t most_;
  std::size_t count_ = 0;
  std::string told_;
};

// Returns `text` without anything that a terminal or a build service would act on.  Control
// characters, DEL, C1 controls and invalid UTF-8 become \xNN, hidden characters (is_hidden) \uNNNN,
// a backslash \\, and the first character of a text that begins with "::" or "##" \xNN.  Other
// UTF-8 stays.
std::string escape(std::string_view text);

// Returns 'text' in quotes, escaped, and cut after `limit` characters with "..." at the end: for
// untrusted names in messages.
std::string quote(std::string_view text, std::size_t limit = 80);

// Returns a number of bytes for a person: 0 B, 512 B, 1.5 KiB, 2.0 GiB.
std::string human_bytes(std::uint64_t bytes);

// Returns the number with commas: 1234567 -> 1,234,567.
std::string group_digits(std::uint64_t number);

// Returns eight hexadecimal digits, as checksums are shown.
std::string hex32(std::uint32_t number);

// Returns [2, 3]; [] for rank 0.
std::string shape_text(std::span<const std::int64_t> shape);

// Parses a number of bytes: "256MiB", "5GB", "4096", "1.5G".  K, M, G, T and KiB.. are powers of
// 1024; KB, MB, GB, TB powers of 1000.  Throws: kUsage.
std::uint64_t parse_size(std::string_view text);

// Returns whether a sorts before b when runs of digits count as numbers: "layers.2" before
// "layers.10".
bool natural_less(std::string_view a, std::string_view b);

// Returns whether `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view text);

// Returns the candidate nearest to `word` by edit distance; empty if none is near enough.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// Returns whether `text` begins like a URL: https://, s3://.
bool is_url(std::string_view text);

}  // namespace fsdp::formats
