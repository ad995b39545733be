// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/optimizer_ids.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"

namespace fsdp::formats {
namespace {

// Returns an optimizer's parameter numbers by their text; none if the optimizer uses names.
std::unordered_map<std::string, std::int64_t> numbers_in(const Value& optimizer) {
  std::unordered_map<std::string, std::int64_t> numbers;
  const Value* groups = member(optimizer, "param_groups");
  if (groups == nullptr) return numbers;
  for (const Value& group : groups->items()) {
    const Value* params = member(group, "params");
    if (params == nullptr) continue;
    for (const Value& param : params->items()) {
      if (!param.as_int()) return {};
      numbers.emplace(std::to_string(*param.as_int()), *param.as_int());
    }
  }
  return numbers;
}

Value with_numbers(const Value& optimizer) {
  const auto numbers = numbers_in(optimizer);
  if (numbers.empty()) return optimizer;
  std::vector<Value::Entry> entries;
  for (const auto& [key, value] : members_of(optimizer)) {
    const bool is_state = key.as_string() != nullptr && *key.as_string() == "state" &&
                          mapping_entries(value).has_value();
    std::vector<Value::Entry> state;
    for (const auto& [parameter, kept] : members_of(value)) {
      const auto number =
          parameter.as_string() == nullptr ? numbers.end() : numbers.find(*parameter.as_string());
      state.emplace_back(number == numbers.end() ? parameter : Value::integer(number->second),
                         kept);
    }
    entries.emplace_back(key, is_state ? mapping_like(value, std::move(state)) : value);
  }
  return mapping_like(optimizer, std::move(entries));
}

}  // namespace

Value with_integer_ids(const Checkpoint& source, const Value& content) {
  const std::string& format = source.description().format;
  if (format == "torch" || format == "hdf5") return content;
  Value out = content;
  for (const StatePart& part : state_parts_of(content)) {
    if (part.kind != PartKind::kOptimizer) continue;
    out = with_value_at(out, part.path, with_numbers(*at_path(content, part.path)));
  }
  return out;
}

}  // namespace fsdp::formats
