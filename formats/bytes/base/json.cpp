// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>

#include <nlohmann/json.hpp>

#include "formats/bytes/base/characters.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Iterates over the text and reports its position: nlohmann's events carry no position.
class TextIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TextIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  const char& operator*() const { return *at_; }
  TextIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  TextIterator operator++(int) {
    TextIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TextIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TextIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Returns "byte 12 (line 1, column 13)".  Lines and columns count from 1, columns in bytes.
std::string place(std::string_view text, std::size_t at, std::uint64_t base_offset) {
  const std::string_view before = text.substr(0, at);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return cat("byte ", base_offset + at, " (line ", line, ", column ", at - line_begin + 1, ")");
}

// Returns only the reason from "[json.exception.parse_error.101] parse error at line 1, column 2:
// syntax error while parsing value - invalid literal; last read: '...'".
std::string reason(std::string_view what) {
  for (const std::string_view mark : {"] ", ": "}) {
    const std::size_t begin = what.find(mark);
    if (begin != std::string_view::npos) what.remove_prefix(begin + mark.size());
  }
  // The text that was read last is left out: it may be as long as the whole input.
  const std::size_t last_read = what.find("; last read: '");
  if (last_read == std::string_view::npos) return escape(what.substr(0, 200));
  const std::size_t expected = what.rfind("'; expected ");
  std::string out(what.substr(0, last_read));
  if (expected != std::string_view::npos && expected > last_read) out += what.substr(expected + 1);
  return escape(std::string_view(out).substr(0, 200));
}

// Passes nlohmann's events on to a JsonHandler, with positions and a limit on depth.
class Events {
 public:
  Events(std::string_view text, const JsonOptions& options, const char* const& reached,
         JsonHandler& handler)
      : text_(text), options_(options), reached_(reached), handler_(handler) {}

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(std::int64_t value) {
    // nlohmann reports integers with a minus sign here. -0 becomes a double: an integer would lose
    // its sign.
    return value == 0 ? scalar(-0.0) : scalar(value);
  }
  bool number_unsigned(std::uint64_t value) { return scalar(value); }
  bool number_float(double value, const std::string& digits) {
    if (digits.find_first_of(".eE") != std::string::npos) return scalar(value);
    const auto behind = static_cast<std::size_t>(reached_ - text_.data());
    handler_.big_integer(digits,
                         options_.base_offset + text_.rfind(digits, behind - digits.size()));
    return true;
  }
  bool string(std::string& value) { return scalar(std::move(value)); }
  bool binary(const std::vector<std::uint8_t>& /*value*/) { return false; }  // not in JSON text
  bool start_object(std::size_t /*count*/) {
    enter();
    handler_.begin_object();
    return true;
  }
  bool key(std::string& name) {
    handler_.key(std::move(name), options_.base_offset + key_begin());
    return true;
  }
  bool end_object() {
    --depth_;
    handler_.end_object();
    return true;
  }
  bool start_array(std::size_t /*count*/) {
    enter();
    handler_.begin_array();
    return true;
  }
  bool end_array() {
    --depth_;
    handler_.end_array();
    return true;
  }
  [[noreturn]] bool parse_error(std::size_t read_count, const std::string& /*token*/,
                                const nlohmann::json::exception& error) {
    const std::size_t at = std::min(read_count == 0 ? 0 : read_count - 1, text_.size());
    throw Error(ErrorCode::kJson, "not valid JSON at ", place(text_, at, options_.base_offset),
                ": ", reason(error.what()));
  }

 private:
  template <typename Value>
  bool scalar(Value&& value) {
    handler_.value(Json(std::forward<Value>(value)));
    return true;
  }
  void enter() {
    if (++depth_ <= options_.max_depth) return;
    const auto at = static_cast<std::size_t>(reached_ - text_.data()) - 1;
    throw Error(ErrorCode::kJsonDepth, "more than ", options_.max_depth,
                " arrays and objects inside each other at ",
                place(text_, at, options_.base_offset));
  }
  // Returns the offset of the opening quote of the string that was just read: the nearest quote
  // after an even number of backslashes.
  std::size_t key_begin() const {
    std::size_t at = static_cast<std::size_t>(reached_ - text_.data()) - 1;
    for (;;) {
      at = text_.rfind('"', at - 1);
      std::size_t first = at;
      while (first > 0 && text_[first - 1] == '\\') --first;
      if ((at - first) % 2 == 0) return at;
    }
  }

  std::string_view text_;
  const JsonOptions& options_;
  const char* const& reached_;
  JsonHandler& handler_;
  std::size_t depth_ = 0;
};

// Builds a Json from the events.
class TreeBuilder : public JsonHandler {
 public:
  TreeBuilder(std::string_view text, const JsonOptions& options) : text_(text), options_(options) {}

  void begin_object() override { open_.push_back({true, {}, {}, {}}); }
  void begin_array() override { open_.push_back({false, {}, {}, {}}); }
  void key(std::string name, std::uint64_t offset) override {
    open_.back().members.emplace_back(std::move(name), Json());
    open_.back().key_offsets.push_back(offset);
  }
  void end_object() override {
    refuse_duplicates(open_.back());
    Json::Object members = std::move(open_.back().members);
    open_.pop_back();
    value(Json(std::move(members)));
  }
  void end_array() override {
    Json::Array items = std::move(open_.back().items);
    open_.pop_back();
    value(Json(std::move(items)));
  }
  void value(Json scalar) override {
    if (open_.empty()) {
      result_ = std::move(scalar);
    } else if (open_.back().is_object) {
      open_.back().members.back().second = std::move(scalar);
    } else {
      open_.back().items.push_back(std::move(scalar));
    }
  }
  Json take() { return std::move(result_); }

 private:
  struct Open {
    bool is_object;
    Json::Array items;
    Json::Object members;
    std::vector<std::uint64_t> key_offsets;  // of `members`
  };

  void refuse_duplicates(const Open& object) const {
    const Json::Object& members = object.members;
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      const int difference = members[a].first.compare(members[b].first);
      return difference != 0 ? difference < 0 : a < b;
    });
    const auto same = std::ranges::adjacent_find(
        order, [&](std::size_t a, std::size_t b) { return members[a].first == members[b].first; });
    if (same == order.end()) return;
    const auto at =
        static_cast<std::size_t>(object.key_offsets[*std::next(same)] - options_.base_offset);
    throw Error(options_.duplicate_code, cat("key ", quote(members[*same].first), " at ",
                                             place(text_, at, options_.base_offset),
                                             " occurs a second time in the same object"));
  }

  std::string_view text_;
  const JsonOptions& options_;
  std::vector<Open> open_;
  Json result_;
};

// Appends the escape of a quote, a backslash or a control character.
void append_escape(std::string& out, char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::string_view kNamed = "\"\\\b\f\n\r\t";
  constexpr std::string_view kNames = "\"\\bfnrt";
  out += '\\';
  if (const std::size_t named = kNamed.find(c); named != std::string_view::npos) {
    out += kNames[named];
    return;
  }
  out += "u00";
  out += kDigits[static_cast<unsigned char>(c) >> 4U];
  out += kDigits[static_cast<unsigned char>(c) & 0x0FU];
}

// Appends \u202e; two surrogates for codes beyond U+FFFF.
void append_code(std::string& out, char32_t code) {
  if (code <= 0xFFFF) {
    out += code_text(code);
    return;
  }
  const char32_t rest = code - 0x10000;
  out += code_text(0xD800 + (rest >> 10U)) + code_text(0xDC00 + (rest & 0x3FFU));
}

void append_double(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  const std::string_view digits(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  out += digits;
  // "1" would be read back as an integer.
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

class TextWriter {
 public:
  explicit TextWriter(int indent) : indent_(indent) {}

  void write(const Json& json) {
    std::visit([this](const auto& value) { write_value(value); }, json.storage());
  }
  std::string take() { return std::move(out_); }

 private:
  void write_value(std::nullptr_t /*value*/) { out_ += "null"; }
  void write_value(const Unheld& /*never*/) {}
  void write_value(bool value) { out_ += value ? "true" : "false"; }
  void write_value(std::int64_t value) { out_ += std::to_string(value); }
  void write_value(std::uint64_t value) { out_ += std::to_string(value); }
  void write_value(double value) { append_double(out_, value); }
  void write_value(const std::string& value) { append_json_string(out_, value); }
  void write_value(const Json::Array& items) {
    write_all('[', items, ']', [this](const Json& item) { write(item); });
  }
  void write_value(const Json::Object& members) {
    write_all('{', members, '}', [this](const auto& member) {
      append_json_string(out_, member.first);
      out_ += indent_ < 0 ? ":" : ": ";
      write(member.second);
    });
  }
  template <typename Items, typename Write>
  void write_all(char open, const Items& items, char close, const Write& write_one) {
    out_ += open;
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += ',';
      first = false;
      new_line();
      write_one(item);
    }
    --depth_;
    if (!items.empty()) new_line();
    out_ += close;
  }
  void new_line() {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(indent_) * depth_, ' ');
  }

  int indent_;
  std::size_t depth_ = 0;
  std::string out_;
};

}  // namespace

Json::Json(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(INT64_MAX)) {
    value_ = static_cast<std::int64_t>(value);
  } else {
    value_ = value;
  }
}

const Json* Json::find(std::string_view key) const {
  const Object* members = as_object();
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, key, &Object::value_type::first);
  return found == members->end() ? nullptr : &found->second;
}

void JsonHandler::big_integer(std::string_view digits, std::uint64_t offset) {
  throw Error(ErrorCode::kJson, "integer ", quote(digits, 40), " at byte ", offset,
              " does not fit 64 bits");
}

void parse_json_stream(std::string_view text, JsonHandler& handler, const JsonOptions& options) {
  // nlohmann takes a NUL for the end of the text and skips a byte order mark; RFC 8259 allows
  // neither.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::kJson, "not valid JSON at ", place(text, nul, options.base_offset),
                ": a NUL byte");
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw Error(ErrorCode::kJson, "not valid JSON at ", place(text, 0, options.base_offset),
                ": a byte order mark");
  }
  const char* reached = text.data();
  Events events(text, options, reached, handler);
  nlohmann::json::sax_parse(TextIterator(text.data(), &reached),
                            TextIterator(text.data() + text.size(), &reached), &events);
}

Json parse_json(std::string_view text, const JsonOptions& options) {
  TreeBuilder builder(text, options);
  parse_json_stream(text, builder, options);
  return builder.take();
}

std::string to_text(const Json& json, int indent) {
  TextWriter writer(indent);
  writer.write(json);
  return writer.take();
}

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
  const auto plain = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\';
  };
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    while (at < text.size() && plain(text[at])) ++at;
    out += text.substr(begin, at - begin);
    if (at == text.size()) break;
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      append_escape(out, text[at++]);
      continue;
    }
    const auto [code, length] = character_at(text, at);
    if (length == 0) {
      out += kReplacement;
    } else if (is_control(code) || is_hidden(code)) {
      append_code(out, code);
    } else {
      out += text.substr(at, length);
    }
    at += std::max<std::size_t>(length, 1);
  }
  out += '"';
}

std::string_view json_kind(const Json& json) noexcept {
  constexpr std::array<std::string_view, 8> kKinds = {"null",       "a boolean", "an integer",
                                                      "an integer", "a number",  "a string",
                                                      "an array",   "an object"};
  return kKinds[json.storage().index()];
}

}  // namespace fsdp::formats
