// SPDX-License-Identifier: Apache-2.0
// Parts of JSON that may be missing.
#pragma once

#include <string>

#include "formats/bytes/base/json.h"

namespace fsdp::formats::hf {

// Returns the text of a string; empty if it is not one.
inline const std::string& text_of(const Json& value) {
  static const std::string none;
  return value.as_string() == nullptr ? none : *value.as_string();
}

// Returns the elements of an array; none if it is null or not one.
inline const Json::Array& list_of(const Json* value) {
  static const Json::Array none;
  return value == nullptr || value->as_array() == nullptr ? none : *value->as_array();
}

// Returns the members of an object; none if it is null or not one.
inline const Json::Object& members_of(const Json* value) {
  static const Json::Object none;
  return value == nullptr || value->as_object() == nullptr ? none : *value->as_object();
}

}  // namespace fsdp::formats::hf
