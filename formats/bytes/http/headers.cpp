// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/headers.h"

#include <algorithm>
#include <charconv>

#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxFields = 200;
constexpr std::size_t kMaxFieldBytes = std::size_t{16} << 10U;

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

const std::string* HttpHead::find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

void add_head_line(HttpHead& head, std::string_view line) {
  // Skips a line that continues the one before it [RFC 9112, 5.2]: no field that is used has one.
  if (line.starts_with(' ') || line.starts_with('\t')) return;
  line = trimmed(line);
  if (line.starts_with("HTTP/")) {
    head = {};
    const std::size_t blank = line.find(' ');
    std::string_view code = line.substr(std::min(blank, line.size() - 1) + 1);
    code = code.substr(0, code.find(' '));
    const auto status = code.size() == 3 ? parse_length(code) : std::nullopt;
    if (status && *status >= 100) head.status = static_cast<int>(*status);
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0 || head.fields.size() >= kMaxFields ||
      line.size() > kMaxFieldBytes) {
    return;
  }
  head.fields.emplace_back(lower_case(trimmed(line.substr(0, colon))),
                           trimmed(line.substr(colon + 1)));
}

std::string strong_etag(std::string_view etag) {
  if (etag.starts_with("W/") || etag.starts_with("w/")) return {};
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"')
    etag = etag.substr(1, etag.size() - 2);
  // Accepts what may stand between the quotes [8.8.3]; other characters would break a request that
  // sends the ETag back.
  const bool plain =
      std::ranges::all_of(etag, [](char c) { return c > 0x20 && c < 0x7F && c != '"'; });
  return plain ? std::string(etag) : std::string();
}

std::optional<std::uint64_t> parse_length(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > INT64_MAX)
    return std::nullopt;
  return value;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash)
    return std::nullopt;
  const auto first = parse_length(text.substr(0, dash));
  const auto last = parse_length(text.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *last < *first) return std::nullopt;
  ContentRange range{*first, *last, std::nullopt};
  if (text.substr(slash + 1) == "*") return range;
  range.total = parse_length(text.substr(slash + 1));
  if (!range.total || *range.total <= *last) return std::nullopt;
  return range;
}

std::string version_of_head(const HttpHead& head, std::string_view field) {
  const std::string* version = head.find(field);
  return version == nullptr ? std::string() : strong_etag(*version);
}

std::optional<StoredFile> file_of_head(const HttpHead& head, std::string_view field) {
  StoredFile file;
  if (const std::string* range = head.find("content-range")) {
    const auto parsed = parse_content_range(*range);
    if (!parsed || !parsed->total) return std::nullopt;
    file.bytes = *parsed->total;
  } else {
    const std::string* length = head.find("content-length");
    const auto parsed = length == nullptr ? std::nullopt : parse_length(*length);
    if (!parsed) return std::nullopt;
    file.bytes = *parsed;
  }
  file.version = version_of_head(head, field);
  if (const std::string* date = head.find("last-modified"))
    file.mtime_ns = parse_http_date(*date).value_or(0);
  return file;
}

}  // namespace fsdp::formats
