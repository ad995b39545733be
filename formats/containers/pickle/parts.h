// SPDX-License-Identifier: Apache-2.0
// All places where a value can hold another one.
#pragma once

#include <span>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Calls `visit` with every value that `value` holds directly, in any place: items, keys and values
// of entries; of an object the callable, its arguments, its state, items and entries.
template <typename Visit>
void for_each_part(const Value& value, const Visit& visit) {
  for (const Value& item : value.items()) visit(item);
  const auto visit_entries = [&](std::span<const Value::Entry> entries) {
    for (const auto& [key, member] : entries) {
      visit(key);
      visit(member);
    }
  };
  visit_entries(value.entries());
  const ObjectData* const object = value.as_object();
  if (object == nullptr) return;
  visit(object->callable);
  visit(object->args);
  if (object->built) visit(object->state);
  for (const Value& item : object->list_items) visit(item);
  visit_entries(object->dict_items);
}

}  // namespace fsdp::formats
