// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/back_reference.h"

#include <unordered_set>
#include <vector>

#include "formats/containers/pickle/node.h"
#include "formats/containers/pickle/parts.h"

namespace fsdp::formats {

std::uint32_t cycle_number(const Value& value) {
  ValueNode* const node = ValueAccess::node(value);
  const std::uint32_t* const number = node == nullptr ? nullptr : ValueAccess::cycle(*node);
  return number == nullptr ? 0 : *number;
}

Value with_cycle_number(Value value, std::uint32_t number) {
  ValueNode* const node = ValueAccess::node(value);
  std::uint32_t* const place = node == nullptr ? nullptr : ValueAccess::cycle(*node);
  if (place != nullptr) *place = number;
  return value;
}

bool holds_back_reference(const Value& value) {
  std::unordered_set<const void*> seen;
  std::vector<const Value*> open = {&value};
  while (!open.empty()) {
    const Value& at = *open.back();
    open.pop_back();
    if (back_reference(at)) return true;
    if (at.identity() == nullptr || !seen.insert(at.identity()).second) continue;
    for_each_part(at, [&open](const Value& part) { open.push_back(&part); });
  }
  return false;
}

}  // namespace fsdp::formats
