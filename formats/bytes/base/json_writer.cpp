// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/json_writer.h"

#include <utility>

namespace fsdp::formats {
namespace {

// Depth up to which items begin lines.
constexpr std::size_t kLineDepth = 2;

// Returns JSON with these characters escaped; they occur only within strings.
std::string without_markup(std::string_view json) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    const std::string_view rest = json.substr(i);
    if (c == '<' || c == '>' || c == '&') {
      out += "\\u00";
      out += kDigits[static_cast<unsigned char>(c) >> 4U];
      out += kDigits[static_cast<unsigned char>(c) & 15U];
    } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
      out += rest[2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

JsonWriter::JsonWriter(Write write, bool escaped) : write_(std::move(write)), escaped_(escaped) {}

void JsonWriter::put(std::string_view json) {
  if (escaped_) {
    write_(without_markup(json));
  } else {
    write_(json);
  }
}

void JsonWriter::begin_item() {
  if (std::exchange(after_key_, false) || items_.empty()) return;
  if (items_.back()) write_(",");
  items_.back() = true;
  if (items_.size() <= kLineDepth) write_("\n");
}

JsonWriter& JsonWriter::begin(char bracket) {
  begin_item();
  write_(std::string_view(&bracket, 1));
  items_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end(char bracket) {
  items_.pop_back();
  write_(std::string_view(&bracket, 1));
  if (items_.empty()) write_("\n");
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  return begin('{');
}
JsonWriter& JsonWriter::end_object() {
  return end('}');
}
JsonWriter& JsonWriter::begin_array() {
  return begin('[');
}
JsonWriter& JsonWriter::end_array() {
  return end(']');
}

JsonWriter& JsonWriter::key(std::string_view name) {
  text(name);
  write_(":");
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(const Json& value) {
  return written(to_text(value));
}

JsonWriter& JsonWriter::written(std::string_view json) {
  begin_item();
  put(json);
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  begin_item();
  std::string json;
  append_json_string(json, value);
  put(json);
  return *this;
}

JsonWriter& JsonWriter::number(std::int64_t value) {
  begin_item();
  write_(std::to_string(value));
  return *this;
}

}  // namespace fsdp::formats
