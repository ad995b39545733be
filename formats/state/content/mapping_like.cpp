// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/mapping_like.h"

#include <utility>

namespace fsdp::formats {

Value mapping_like(const Value& like, std::vector<Value::Entry> entries) {
  if (like.as_object() == nullptr || !mapping_entries(like)) return Value::dict(std::move(entries));
  ObjectData object = *like.as_object();
  // A Counter is made from a dict; the arguments of the others are not entries.
  if (is_call_of(like, "collections", "Counter") && !object.args.items().empty()) {
    object.args = Value::tuple({Value::dict(std::move(entries))});
  } else {
    object.dict_items = std::move(entries);
  }
  return Value::object(std::move(object));
}

}  // namespace fsdp::formats
