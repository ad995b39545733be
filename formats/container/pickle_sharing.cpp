// SPDX-License-Identifier: Apache-2.0
#include "formats/container/pickle_sharing.h"

#include <string>
#include <vector>

#include "formats/container/pickle_node.h"

namespace fsdp::formats {

PickleSharing::PickleSharing(const Value& root) {
  std::vector<const Value*> pending = {&root};
  const auto add = [&pending](const Value& value) {
    if (ValueAccess::node(value) != nullptr) pending.push_back(&value);
  };
  while (!pending.empty()) {
    const Value& value = *pending.back();
    pending.pop_back();
    if (!note(value)) continue;
    for (const Value& item : value.items()) add(item);
    for (const auto& [key, entry] : value.entries()) {
      add(key);
      add(entry);
    }
    if (const ObjectData* const object = value.as_object()) {
      add(object->callable);
      add(object->args);
      if (object->built) add(object->state);
      for (const Value& item : object->list_items) add(item);
      for (const auto& [key, entry] : object->dict_items) {
        add(key);
        add(entry);
      }
    }
  }
}

bool PickleSharing::note(const Value& value) {
  const auto count = [](auto& map, const auto& key) {
    const auto [at, is_new] = map.try_emplace(key, kOnce);
    if (!is_new) at->second = kUnwritten;
    return is_new;
  };
  if (const std::string* const text = value.as_string()) return count(strings_, *text);
  if (const GlobalName* const name = value.as_global()) {
    return count(names_, Name(name->module, name->name));
  }
  if (value.kind() == ValueKind::kStorage) return true;
  const ValueNode* const node = ValueAccess::node(value);
  if (node == nullptr || node->references == 1) return true;
  return count(nodes_, node);
}

PickleSharing::Slot* PickleSharing::find(const Value& value) {
  const auto look_up = [](auto& map, const auto& key) -> Slot* {
    const auto at = map.find(key);
    return at == map.end() ? nullptr : &at->second;
  };
  if (const std::string* const text = value.as_string()) return look_up(strings_, *text);
  if (const GlobalName* const name = value.as_global()) {
    return look_up(names_, Name(name->module, name->name));
  }
  const ValueNode* const node = ValueAccess::node(value);
  if (node == nullptr || node->references == 1) return nullptr;
  return look_up(nodes_, node);
}

std::optional<std::uint32_t> PickleSharing::slot(const Value& value) {
  const Slot* const found = find(value);
  if (found == nullptr || *found >= kUnwritten) return std::nullopt;
  return *found;
}

std::optional<std::uint32_t> PickleSharing::take_slot(const Value& value) {
  Slot* const found = find(value);
  if (found == nullptr || *found != kUnwritten) return std::nullopt;
  *found = next_slot_++;
  return *found;
}

}  // namespace fsdp::formats
