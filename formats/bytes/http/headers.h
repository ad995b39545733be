// SPDX-License-Identifier: Apache-2.0
// The head of an HTTP answer, and what its fields mean [RFC 9110].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Returns `text` with A to Z in lower case, as names of fields and hosts are compared.
std::string lower_case(std::string_view text);

struct HttpHead {
  int status = 0;  // 0: none came
  // Names in lower case, in the order of the answer, without blanks around the values.
  std::vector<std::pair<std::string, std::string>> fields;

  // Returns the first field of this name, in lower case; null if there is none.
  const std::string* find(std::string_view name) const;
};

// Takes one line of a head, with or without its end.  A status line ("HTTP/1.1 206 ...") begins a
// new head, because interim answers may come first.  Ignores lines that are not fields, and what
// exceeds 200 fields or 16 KiB a field.
void add_head_line(HttpHead& head, std::string_view line);

// Returns the opaque text of a strong ETag ("abc" -> abc; also without quotes, as some stores write
// it); empty for a weak one, and for one that could not be sent back.
std::string strong_etag(std::string_view etag);

// "bytes 0-99/1234" [14.4].
struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;  // nullopt: "*"
};
std::optional<ContentRange> parse_content_range(std::string_view text);
// Parses a decimal number without sign that fits 63 bits; nullopt for anything else.
std::optional<std::uint64_t> parse_length(std::string_view text);

inline constexpr std::string_view kEtagField = "etag";

// Returns the version in a field of the head: the opaque text of a strong ETag, or of a field of
// the same form; empty if there is none.
std::string version_of_head(const HttpHead& head, std::string_view field = kEtagField);
// Returns what a head says of its file.  `bytes`: from Content-Range, or from Content-Length.
// `field`: that of the version.  nullopt: the head has no length.
std::optional<StoredFile> file_of_head(const HttpHead& head, std::string_view field = kEtagField);

}  // namespace fsdp::formats
