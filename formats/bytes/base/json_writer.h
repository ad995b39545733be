// SPDX-License-Identifier: Apache-2.0
// Writes one JSON document piece by piece, so that lists of a million items are never held in
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/json.h"

namespace fsdp::formats {

// Each member of the outermost object and each item of a list in it begins a line; deeper items
// follow each other without blanks.  Values are spelled as `to_text` spells them.
//
//   JsonWriter json([&](std::string_view text) { out << text; });
//   json.begin_object().member("path", path).key("tensors").begin_array();
//   for (const auto& tensor : tensors) json.value(tensor_json(tensor));
//   json.end_array().end_object();
class JsonWriter {
 public:
  using Write = std::function<void(std::string_view text)>;
  // `escaped`: spells characters in strings that could end a <script> element or a line of
  // JavaScript as \uxxxx.
  explicit JsonWriter(Write write, bool escaped = false);

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  // Requires: an object was begun; a value, an object or an array follows.
  JsonWriter& key(std::string_view name);
  JsonWriter& value(const Json& value);
  JsonWriter& member(std::string_view name, const Json& value) { return key(name).value(value); }
  // Write what value() writes, without a Json: for long lists.
  JsonWriter& text(std::string_view value);
  JsonWriter& number(std::int64_t value);
  // Writes JSON that to_text returned.
  JsonWriter& written(std::string_view json);

 private:
  void begin_item();
  JsonWriter& begin(char bracket);
  JsonWriter& end(char bracket);
  void put(std::string_view json);

  Write write_;
  bool escaped_;
  std::vector<bool> items_;  // of each open object and array: whether it has items
  bool after_key_ = false;
};

}  // namespace fsdp::formats
