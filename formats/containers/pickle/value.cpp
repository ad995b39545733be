// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

std::string_view kind_name(ValueKind kind) noexcept {
  constexpr std::string_view kNames[] = {
      "None", "bool",  "int",  "float", "record",    "str",    "bytes",  "bytearray", "big int",
      "list", "tuple", "dict", "set",   "frozenset", "global", "object", "storage"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_call_of(const Value& value, std::string_view module, std::string_view name) {
  const ObjectData* const object = value.as_object();
  const GlobalName* const callable = object == nullptr ? nullptr : object->callable.as_global();
  return callable != nullptr && callable->module == module && callable->name == name;
}

std::optional<std::span<const Value::Entry>> mapping_entries(const Value& value) {
  if (value.kind() == ValueKind::kDict) return value.entries();
  const ObjectData* const object = value.as_object();
  if (object == nullptr || object->by_new || !object->list_items.empty()) return std::nullopt;
  const std::span<const Value> args = object->args.items();
  if (is_call_of(value, "collections", "OrderedDict")) {
    if (!args.empty()) return std::nullopt;
    return object->dict_items;
  }
  if (is_call_of(value, "collections", "defaultdict")) {
    if (args.size() > 1) return std::nullopt;
    return object->dict_items;
  }
  if (is_call_of(value, "collections", "Counter")) {
    if (args.empty()) return object->dict_items;
    if (args.size() != 1 || args[0].kind() != ValueKind::kDict) return std::nullopt;
    if (!object->dict_items.empty()) return std::nullopt;
    return args[0].entries();
  }
  return std::nullopt;
}

}  // namespace fsdp::formats
