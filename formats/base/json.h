// SPDX-License-Identifier: Apache-2.0
// Strict JSON: no duplicate keys, no comments, bounded depth, integers kept exact, order of members kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp::formats {

// A JSON value.  Objects keep the order of their members.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  // Unsigned integers above 2^63 - 1 are held as such; numbers with a fraction or exponent as double.
  using Storage = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object>;

  Json() : value_(nullptr) {}
  Json(std::nullptr_t) : value_(nullptr) {}             // NOLINT(google-explicit-constructor): literals read as JSON
  Json(bool value) : value_(value) {}                   // NOLINT(google-explicit-constructor)
  Json(int value) : value_(std::int64_t{value}) {}      // NOLINT(google-explicit-constructor)
  Json(std::int64_t value) : value_(value) {}           // NOLINT(google-explicit-constructor)
  Json(std::uint64_t value);                            // NOLINT(google-explicit-constructor)
  Json(double value) : value_(value) {}                 // NOLINT(google-explicit-constructor)
  Json(const char* value) : value_(std::string(value)) {}       // NOLINT(google-explicit-constructor)
  Json(std::string_view value) : value_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Json(std::string value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Json(Array value) : value_(std::move(value)) {}               // NOLINT(google-explicit-constructor)
  Json(Object value) : value_(std::move(value)) {}              // NOLINT(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&value_); }
  const std::string* as_string() const { return std::get_if<std::string>(&value_); }
  const Array* as_array() const { return std::get_if<Array>(&value_); }
  const Object* as_object() const { return std::get_if<Object>(&value_); }
  const Storage& storage() const { return value_; }

  // The member of an object, nullptr where it has none of that name or is no object.
  const Json* find(std::string_view key) const;

 private:
  Storage value_;
};

// Parses exactly one JSON text (leading and trailing blanks allowed).  Duplicate keys of one object, depth
// above `max_depth`, invalid UTF-8 and anything RFC 8259 does not allow are refused.
// Throws: kJson naming the byte offset (duplicate keys included, with the key), kJsonDepth.
Json parse_json(std::string_view text, std::size_t max_depth = 128);

// Writes JSON; `indent` < 0 writes it on one line without blanks.  Strings that are not UTF-8 are written with
// U+FFFD in place of each bad byte.  Doubles round-trip; NaN and infinities become null.
std::string to_text(const Json& json, int indent = -1);

}  // namespace fsdp::formats
