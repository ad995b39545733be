// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/sharing.h"

#include <string>
#include <vector>

#include "formats/containers/pickle/back_reference.h"
#include "formats/containers/pickle/node.h"
#include "formats/containers/pickle/parts.h"
#include "formats/containers/pickle/text.h"

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
    for_each_part(value, add);
  }
}

PickleSharing::Slot& PickleSharing::text_slot(const Value& value) {
  if (const std::string* const text = value.as_string()) {
    return strings_.try_emplace(*text, kUnseen).first->second;
  }
  const GlobalName& name = *value.as_global();
  return names_.try_emplace(Name(protocol_2_module(name.module), name.name), kUnseen).first->second;
}

PickleSharing::Slot* PickleSharing::find(const Value& value) {
  const ValueNode* const node = ValueAccess::node(value);
  if (node == nullptr || value.kind() == ValueKind::kStorage) return nullptr;
  const bool is_alone = node->references == 1 && cycle_number(value) == 0;
  if (value.kind() != ValueKind::kString && value.kind() != ValueKind::kGlobal) {
    return is_alone ? nullptr : &nodes_.try_emplace(node, kUnseen).first->second;
  }
  if (is_alone) return &text_slot(value);
  Slot*& slot = text_nodes_.try_emplace(node, nullptr).first->second;
  if (slot == nullptr) slot = &text_slot(value);
  return slot;
}

bool PickleSharing::note(const Value& value) {
  Slot* const slot = find(value);
  if (slot == nullptr) return true;
  const bool is_new = *slot == kUnseen;
  const std::uint32_t number = cycle_number(value);
  // A member refers back to this value.
  if (number != 0) cycles_.emplace(number, slot);
  *slot = is_new && number == 0 ? kOnce : kUnwritten;
  return is_new;
}

std::optional<std::uint32_t> PickleSharing::slot(const Value& value) {
  const Slot* const found = find(value);
  if (found == nullptr || *found >= kUnwritten) return std::nullopt;
  return *found;
}

std::optional<std::uint32_t> PickleSharing::slot_of_cycle(std::uint32_t number) const {
  const auto found = cycles_.find(number);
  if (found == cycles_.end() || *found->second >= kUnwritten) return std::nullopt;
  return *found->second;
}

std::optional<std::uint32_t> PickleSharing::take_slot(const Value& value) {
  Slot* const found = find(value);
  if (found == nullptr || *found != kUnwritten) return std::nullopt;
  *found = next_slot_++;
  return *found;
}

}  // namespace fsdp::formats
