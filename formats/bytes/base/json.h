// SPDX-License-Identifier: Apache-2.0
// Strict JSON: no duplicate keys, no comments, bounded depth, integers kept exact, order of members
// kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/base/unheld.h"

namespace fsdp::formats {

// A JSON value.  Objects keep the order of their members.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  // Unsigned integers above 2^63 - 1 are held as such; numbers with a fraction or exponent, and -0,
  // as double.
  using Storage = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double,
                               std::string, Array, Object, Unheld>;

  Json() : value_(nullptr) {}
  // NOLINTBEGIN(google-explicit-constructor): literals read as JSON.
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value);
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&value_); }
  const std::string* as_string() const { return std::get_if<std::string>(&value_); }
  const Array* as_array() const { return std::get_if<Array>(&value_); }
  const Object* as_object() const { return std::get_if<Object>(&value_); }
  const Storage& storage() const { return value_; }

  // Returns the member of an object, nullptr if it has none of that name or is not an object.
  // Searches linearly: walk `as_object` to find many.
  const Json* find(std::string_view key) const;

 private:
  Storage value_;
};

struct JsonOptions {
  std::size_t max_depth = 128;    // of arrays and objects inside each other
  std::uint64_t base_offset = 0;  // offset of the text in its file; shifts the offsets in messages
  ErrorCode duplicate_code = ErrorCode::kJson;  // code of a duplicate key in parse_json
};

// Parses exactly one JSON text (leading and trailing blanks allowed).  Duplicate keys of one
// object, depth above `max_depth`, integers beyond 64 bits, numbers beyond a double, a byte order
// mark, invalid UTF-8 and anything else RFC 8259 does not allow are refused.
// Throws: kJson naming the byte offset (duplicate keys included, with the key), kJsonDepth.
Json parse_json(std::string_view text, const JsonOptions& options = {});

// Receives the parts of a JSON text in order: for texts whose tree would take far more memory than
// the text itself, or whose errors need other codes.
class JsonHandler : public Interface {
 public:
  virtual void begin_object() = 0;
  // Receives the name of the next member and the offset of its opening quote.  The handler itself
  // must refuse duplicates.
  virtual void key(std::string name, std::uint64_t offset) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  // Receives a string, number, boolean or null.
  virtual void value(Json scalar) = 0;
  // Receives an integer that 64 bits cannot hold, as written.
  // Throws: kJson, unless overridden.
  virtual void big_integer(std::string_view digits, std::uint64_t offset);
};

// Does the same as parse_json, but calls `handler`, whose exceptions pass through.  Before an
// error, the handler has received only the valid part of the text.
// Throws: kJson, kJsonDepth.
void parse_json_stream(std::string_view text, JsonHandler& handler,
                       const JsonOptions& options = {});

// Returns JSON text: on one line without blanks if `indent` < 0, else as Python's json.dump writes
// it with that indent.  Each byte that is not UTF-8 is written as U+FFFD.  Doubles round-trip; NaN
// and infinities become null.
std::string to_text(const Json& json, int indent = -1);

// Appends `text` as a JSON string with its quotes, as `to_text` writes one.
void append_json_string(std::string& out, std::string_view text);

// Returns the kind of a value, for messages: "an object", "a string", "null".
std::string_view json_kind(const Json& json) noexcept;

}  // namespace fsdp::formats
