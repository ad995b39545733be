// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/literals.h"

#include <charconv>
#include <cstddef>

namespace fsdp::formats {
namespace {

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | code >> 6U);
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | code >> 12U);
    out += static_cast<char>(0x80U | (code >> 6U & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | code >> 18U);
    out += static_cast<char>(0x80U | (code >> 12U & 0x3FU));
    out += static_cast<char>(0x80U | (code >> 6U & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  }
}

// Reads hexadecimal or octal digits at the start of `text`, at least `least` of them.
std::optional<std::uint32_t> escaped_number(std::string_view text, int base, std::size_t least) {
  std::uint32_t code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, base);
  const auto read = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || read < least || code > 0x10FFFF) return std::nullopt;
  return code;
}

bool has_sign_bit(char byte) {
  return (static_cast<unsigned char>(byte) & 0x80U) != 0;
}

std::string_view without_repeated_sign(std::string_view bytes) {
  while (bytes.size() > 1 &&
         bytes.back() == (has_sign_bit(bytes[bytes.size() - 2]) ? '\xff' : '\0')) {
    bytes.remove_suffix(1);
  }
  return bytes;
}

}  // namespace

std::optional<std::string> raw_unicode(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    append_utf8(out, static_cast<unsigned char>(line[i]));
    if (line[i] != '\\' || i + 1 == line.size()) continue;
    const char next = line[++i];
    if (next != 'u' && next != 'U') {
      // An escaped backslash does not begin another pair.
      append_utf8(out, static_cast<unsigned char>(next));
      continue;
    }
    const std::size_t digits = next == 'u' ? 4 : 8;
    const auto code = escaped_number(line.substr(i + 1, digits), 16, digits);
    if (!code) return std::nullopt;
    out.pop_back();  // the backslash
    append_utf8(out, *code);
    i += digits;
  }
  return out;
}

std::optional<std::string> quoted_text(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() || (line[0] != '\'' && line[0] != '"'))
    return std::nullopt;
  line = line.substr(1, line.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out += line[i];
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    constexpr std::string_view kLetters = "abtnvfr";
    if (const auto letter = kLetters.find(line[i]); letter != std::string_view::npos) {
      out += static_cast<char>("\a\b\t\n\v\f\r"[letter]);
    } else if (line[i] == 'x') {
      const auto code = escaped_number(line.substr(i + 1, 2), 16, 2);
      if (!code) return std::nullopt;
      out += static_cast<char>(*code);
      i += 2;
    } else if (line[i] >= '0' && line[i] <= '7') {
      std::size_t digits = 1;
      while (digits < 3 && i + digits < line.size() && line[i + digits] >= '0' &&
             line[i + digits] <= '7') {
        ++digits;
      }
      out += static_cast<char>(*escaped_number(line.substr(i, digits), 8, 1));
      i += digits - 1;
    } else {
      if (line[i] != '\\' && line[i] != '\'' && line[i] != '"') out += '\\';
      out += line[i];
    }
  }
  return out;
}

std::optional<std::uint64_t> slot_number(std::string_view line) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
  if (!line.empty() && line.front() == '+') line.remove_prefix(1);
  std::string digits;
  bool between = false;  // after a digit, where an underscore may stand
  for (const char c : line) {
    if (c == '_' && !between) return std::nullopt;
    between = c != '_';
    if (between) digits += c;
  }
  if (!between) return std::nullopt;
  std::uint64_t slot = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slot);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return slot;
}

Value decode_long(std::string_view bytes) {
  bytes = without_repeated_sign(bytes);
  if (bytes.size() > sizeof(std::int64_t)) return Value::big_int(std::string(bytes));
  std::uint64_t number = !bytes.empty() && has_sign_bit(bytes.back()) ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    number = number << 8U | static_cast<unsigned char>(bytes[i]);
  return Value::integer(static_cast<std::int64_t>(number));
}

std::string encode_long(std::int64_t number) {
  std::string bytes;
  for (unsigned i = 0; i < sizeof(number); ++i)
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i)));
  return std::string(without_repeated_sign(bytes));
}

}  // namespace fsdp::formats
