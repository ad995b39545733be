// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/key_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxKeyBytes = 64U << 10U;
// Outside these limits Python writes exponents: 1e-05, 1e+16.
constexpr int kMinFixed = -4;
constexpr int kMaxFixed = 16;

std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto write = [&](std::chars_format format) {
    return std::string(
        buffer.data(),
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, format).ptr);
  };
  // The shortest digits that read back as the same number, in Python and here.
  std::string text = write(std::chars_format::scientific);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < kMinFixed || exponent >= kMaxFixed) return text;
  text = write(std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

// Decimal text takes time quadratic in the digits; longer integers than this do not occur as keys.
constexpr std::size_t kMaxBigIntBytes = 128;

// `bytes` are little-endian two's complement.
std::string big_int_text(std::string_view bytes) {
  if (bytes.size() > kMaxBigIntBytes) return cat("<integer of ", bytes.size(), " bytes>");
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
  std::vector<unsigned> digits = {0};  // base 10, least first
  for (std::size_t i = bytes.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    unsigned carry = negative ? static_cast<unsigned char>(~byte) : byte;
    for (unsigned& digit : digits) {
      carry += digit * 256;
      digit = carry % 10;
      carry /= 10;
    }
    for (; carry != 0; carry /= 10) digits.push_back(carry % 10);
  }
  // -x is ~x + 1.
  for (std::size_t i = 0; negative && ++digits[i] == 10; ++i) {
    digits[i] = 0;
    if (i + 1 == digits.size()) digits.push_back(0);
  }
  std::string text = negative ? "-" : "";
  for (std::size_t i = digits.size(); i-- > 0;) text += static_cast<char>('0' + digits[i]);
  return text;
}

// Appends the text in quotes, escaped as in Python; bytes beyond ASCII are escaped if `ascii`.
void append_quoted(std::string& out, std::string_view text, bool ascii) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7F || (ascii && byte >= 0x80)) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += "\\x";
      out += kDigits[byte >> 4U];
      out += kDigits[byte & 15U];
    } else {
      out += c;
    }
  }
  out += quote;
}

class KeyWriter {
 public:
  std::string run(const Value& key, bool quoted) {
    if (!quoted && key.as_string() != nullptr) return *key.as_string();
    append(key);
    return std::move(out_);
  }

 private:
  void append(const Value& key) {
    check_key(out_);
    switch (key.kind()) {
      case ValueKind::kNone:
        out_ += "None";
        return;
      case ValueKind::kBool:
        out_ += *key.as_bool() ? "True" : "False";
        return;
      case ValueKind::kInt:
        out_ += std::to_string(*key.as_int());
        return;
      case ValueKind::kBigInt:
        out_ += big_int_text(*key.as_bytes());
        return;
      case ValueKind::kFloat:
        out_ += float_repr(*key.as_float());
        return;
      case ValueKind::kString:
        append_quoted(out_, *key.as_string(), false);
        return;
      case ValueKind::kBytes:
        out_ += 'b';
        append_quoted(out_, *key.as_bytes(), true);
        return;
      case ValueKind::kTuple:
        out_ += '(';
        append_all(key.items());
        out_ += key.items().size() == 1 ? ",)" : ")";
        return;
      case ValueKind::kFrozenSet:
        append_frozen_set(key.items());
        return;
      case ValueKind::kGlobal:
        append_global(*key.as_global());
        return;
      case ValueKind::kObject:
        append_object(key, *key.as_object());
        return;
      default:
        out_ += cat("<", kind_name(key.kind()), ">");
    }
  }

  void append_all(std::span<const Value> items) {
    bool first = true;
    for (const Value& item : items) {
      if (!first) out_ += ", ";
      first = false;
      append(item);
    }
  }

  void append_frozen_set(std::span<const Value> items) {
    out_ += items.empty() ? "frozenset(" : "frozenset({";
    append_all(items);
    out_ += items.empty() ? ")" : "})";
  }

  // dtypes, layouts and memory formats are objects of torch; any other name in a pickle is a class.
  void append_global(const GlobalName& name) {
    const bool object = name.module == "torch" &&
                        (dtype_from_torch_name(name.name) || name.name.ends_with("_format"));
    const bool builtin = name.module == "builtins" || name.module == "__builtin__";
    if (object) {
      out_ += "torch." + name.name;
    } else {
      out_ += "<class '" + (builtin ? name.name : name.module + "." + name.name) + "'>";
    }
  }

  void append_object(const Value& key, const ObjectData& object) {
    const auto args = object.args.items();
    if (is_call_of(key, "builtins", "frozenset") || is_call_of(key, "__builtin__", "frozenset")) {
      append_frozen_set(args.empty() ? std::span<const Value>() : args[0].items());
    } else if (is_call_of(key, "torch", "device") && !args.empty() &&
               args[0].as_string() != nullptr) {
      out_ += *args[0].as_string();
      if (args.size() > 1 && args[1].as_int()) out_ += cat(":", *args[1].as_int());
    } else if (is_call_of(key, "torch", "Size") && args.size() == 1) {
      out_ += "torch.Size([";
      append_all(args[0].items());
      out_ += "])";
    } else if (is_call_of(key, "torch.serialization", "_get_layout") && args.size() == 1 &&
               args[0].as_string() != nullptr) {
      out_ += *args[0].as_string();
    } else {
      const GlobalName* name = object.callable.as_global();
      out_ += name == nullptr ? "object" : name->module + "." + name->name;
      out_ += '(';
      append_all(args);
      out_ += ')';
    }
  }

  std::string out_;
};

}  // namespace

void check_key(const std::string& key) {
  if (key.size() > kMaxKeyBytes)
    throw Error(ErrorCode::kName, "key ", quote(key), " has more than ", kMaxKeyBytes, " bytes");
}

std::string key_text(const Value& key) {
  return KeyWriter().run(key, false);
}

std::string key_repr(const Value& key) {
  return KeyWriter().run(key, true);
}

}  // namespace fsdp::formats
