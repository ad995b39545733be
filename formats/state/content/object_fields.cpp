// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/object_fields.h"

#include <utility>

#include "formats/bytes/base/checked_math.h"

namespace fsdp::formats {

const Value* member(const Value& mapping, std::string_view name) {
  if (mapping.kind() == ValueKind::kDict) return mapping.find(name);
  const auto entries = mapping_entries(mapping);
  if (!entries) return nullptr;
  for (const auto& [key, value] : *entries) {
    const std::string* text = key.as_string();
    if (text != nullptr && *text == name) return &value;
  }
  return nullptr;
}

const Value* at_path(const Value& root, std::span<const PathStep> path) {
  if (path.empty()) return &root;
  if (const auto* position = std::get_if<std::int64_t>(&path[0])) {
    const auto index = static_cast<std::size_t>(*position);
    return index < root.items().size() ? at_path(root.items()[index], path.subspan(1)) : nullptr;
  }
  const auto& name = std::get<std::string>(path[0]);
  const auto entries = mapping_entries(root);
  if (!entries) return nullptr;
  for (const auto& [key, value] : *entries) {
    const bool same = key.as_string() != nullptr
                          ? *key.as_string() == name
                          : key.as_int() && std::to_string(*key.as_int()) == name;
    if (same) return at_path(value, path.subspan(1));
  }
  return nullptr;
}

const Value* attribute(const Value& object, std::string_view name) {
  const ObjectData* data = object.as_object();
  if (data == nullptr) return nullptr;
  if (data->state.kind() == ValueKind::kTuple) {
    for (const Value& part : data->state.items()) {
      if (const Value* found = part.find(name)) return found;
    }
    return nullptr;
  }
  return data->state.find(name);
}

std::string_view class_name(const Value& object) {
  const ObjectData* data = object.as_object();
  if (data == nullptr) return {};
  // copyreg._reconstructor(cls, object, None), as in protocols 0 and 1.
  const GlobalName* name = data->callable.as_global();
  if (name != nullptr && name->name == "_reconstructor" && !data->args.items().empty())
    name = data->args.items()[0].as_global();
  return name == nullptr ? std::string_view() : std::string_view(name->name);
}

bool is_sequence(const Value& value) {
  return value.kind() == ValueKind::kList || value.kind() == ValueKind::kTuple;
}

std::optional<std::vector<std::int64_t>> integers(const Value& value) {
  if (is_call_of(value, "torch", "Size") && value.as_object()->args.items().size() == 1)
    return integers(value.as_object()->args.items()[0]);
  if (!is_sequence(value)) return std::nullopt;
  std::vector<std::int64_t> out;
  for (const Value& item : value.items()) {
    const auto number = item.as_int();
    if (!number) return std::nullopt;
    out.push_back(*number);
  }
  return out;
}

std::optional<std::vector<std::int64_t>> shape_of(const Value& value) {
  auto shape = integers(value);
  if (!shape) return std::nullopt;
  for (const std::int64_t size : *shape) {
    if (size < 0) return std::nullopt;
  }
  try {
    checked_numel(*shape, "shape");
  } catch (const Error&) {
    return std::nullopt;
  }
  return shape;
}

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
