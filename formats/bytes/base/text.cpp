// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "formats/bytes/base/characters.h"
#include "formats/bytes/base/error.h"

namespace fsdp::formats {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_hex(std::string& out, char c) {
  std::array<char, 8> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\x%02x",
                static_cast<unsigned>(static_cast<unsigned char>(c)));
  out += buffer.data();
}

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, found] = character_at(text, at);
    const std::size_t length = std::max<std::size_t>(found, 1);
    if (found == 0 || is_control(code)) {
      for (const char c : text.substr(at, length)) append_hex(out, c);
    } else if (is_hidden(code)) {
      out += code_text(code);
    } else if (code == '\\') {
      out += "\\\\";
    } else {
      out.append(text.substr(at, length));
    }
    at += length;
  }
  return out;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string joined(std::span<const std::string> words, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i != 0) text += between;
    text += words[i];
  }
  return text;
}

std::string escape(std::string_view text) {
  // Build services take these as commands at the start of a line.
  const std::size_t at = std::min(text.find_first_not_of(' '), text.size());
  const std::string_view word = text.substr(at);
  if (!word.starts_with("::") && !word.starts_with("##")) return escaped(text);
  std::string out(at, ' ');
  append_hex(out, word[0]);
  return out + escaped(word.substr(1));
}

std::string quote(std::string_view text, std::size_t limit) {
  std::size_t end = 0;
  std::size_t count = 0;
  while (end < text.size() && count < limit) {
    end += std::max<std::size_t>(1, character_at(text, end).length);
    ++count;
  }
  return "'" + escaped(text.substr(0, end)) + (end < text.size() ? "..." : "") + "'";
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.1f %s", value, kUnits[unit]);
  return buffer.data();
}

std::string group_digits(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string hex32(std::uint32_t number) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%08x", number);
  return buffer.data();
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

std::uint64_t parse_size(std::string_view text) {
  const auto refuse = [&] {
    return Error(ErrorCode::kUsage,
                 "size " + quote(text) + " is not a number of bytes such as 256MiB or 5GB");
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0)) throw refuse();
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kPrefixes = "KMGT";
    const std::size_t power =
        kPrefixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (power == std::string_view::npos) throw refuse();
    const std::string_view rest = unit.substr(1);
    if (rest.empty() || rest == "iB") {
      factor = std::pow(1024.0, static_cast<double>(power + 1));
    } else if (rest == "B") {
      factor = std::pow(1000.0, static_cast<double>(power + 1));
    } else {
      throw refuse();
    }
  }
  const double bytes = number * factor;
  if (bytes >= 9.0e18) throw refuse();
  return static_cast<std::uint64_t>(bytes);
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const auto run = [](std::string_view text, std::size_t& at) {
        while (at < text.size() && text[at] == '0') ++at;
        const std::size_t begin = at;
        while (at < text.size() && is_digit(text[at])) ++at;
        return text.substr(begin, at - begin);
      };
      const std::string_view x = run(a, i);
      const std::string_view y = run(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if ((a.size() - i) != (b.size() - j)) return a.size() - i < b.size() - j;
  return a < b;  // "01" and "1" are equal as numbers: keep a strict order.
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_at(text, at).length;
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  // Most short words are two letters away from each other.
  std::size_t best_distance = word.size() < 4 ? 2 : std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t substitute = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
      }
    }
    // A candidate that differs in as many places as the word has letters has nothing in common with
    // the word.
    if (row.back() < best_distance && row.back() < word.size()) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

bool is_url(std::string_view text) {
  const std::size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(scheme), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  });
}

}  // namespace fsdp::formats
