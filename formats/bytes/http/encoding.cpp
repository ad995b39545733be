// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/encoding.h"

#include <algorithm>

namespace fsdp::formats {
namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

bool is_unreserved(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

std::optional<unsigned> hex_value(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
  return std::nullopt;
}

bool is_escape(std::string_view text, std::size_t at) {
  return text[at] == '%' && at + 2 < text.size() && hex_value(text[at + 1]) &&
         hex_value(text[at + 2]);
}

void append_escaped(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  out += '%';
  out += kHexDigits[byte >> 4U];
  out += kHexDigits[byte & 0xFU];
}

std::string encoded(std::string_view text, bool slashes_stay, bool escapes_stay) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool stays =
        is_unreserved(c) || (slashes_stay && c == '/') || (escapes_stay && is_escape(text, i));
    if (stays) {
      out += c;
    } else {
      append_escaped(out, c);
    }
  }
  return out;
}

}  // namespace

std::string percent_encode(std::string_view text) {
  return encoded(text, false, false);
}

std::string encode_path(std::string_view path) {
  return encoded(path, true, false);
}

std::string complete_path(std::string_view path) {
  return encoded(path, true, true);
}

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_blank) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (!is_escape(text, i)) return std::nullopt;
      out += static_cast<char>(*hex_value(text[i + 1]) * 16 + *hex_value(text[i + 2]));
      i += 2;
    } else {
      out += plus_is_blank && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string encode_query(const Query& query) {
  Query members;
  members.reserve(query.size());
  for (const auto& [name, value] : query)
    members.emplace_back(percent_encode(name), percent_encode(value));
  std::ranges::sort(members);
  std::string out;
  for (const auto& [name, value] : members) {
    if (!out.empty()) out += '&';
    out.append(name).append(1, '=').append(value);
  }
  return out;
}

}  // namespace fsdp::formats
