// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/fairscale_optimizer.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::fairscale {

bool is_optimizer(const Value& value) {
  const Value* state = member(value, "state");
  const Value* groups = member(value, "param_groups");
  if (state == nullptr || groups == nullptr || !mapping_entries(*state) ||
      groups->kind() != ValueKind::kList || groups->items().empty())
    return false;
  return std::all_of(groups->items().begin(), groups->items().end(), [](const Value& group) {
    const Value* params = member(group, "params");
    return params != nullptr && params->kind() == ValueKind::kList;
  });
}

std::string why_not_joined(const Value& optimizer, std::size_t count) {
  const auto groups = member(optimizer, "param_groups")->items();
  if (groups.size() != 1) return cat("it has ", groups.size(), " parameter groups");
  const auto params = member(groups[0], "params")->items();
  if (params.size() != count) {
    return cat("it is of ", params.size(), " parameters, and the metadata are of ", count);
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].as_int() != static_cast<std::int64_t>(i))
      return "its parameters are not numbered";
  }
  const auto states = mapping_entries(*member(optimizer, "state"));
  for (const auto& [key, state] : *states) {
    const auto number = key.as_int();
    if (!number || *number < 0 || static_cast<std::uint64_t>(*number) >= count ||
        !mapping_entries(state))
      return "it has a state of a parameter that it does not list";
  }
  return {};
}

std::vector<const Value*> states_of(const Value& optimizer, std::size_t count) {
  std::vector<const Value*> states(count, nullptr);
  const auto entries = mapping_entries(*member(optimizer, "state"));
  for (const auto& [key, state] : *entries)
    states[static_cast<std::size_t>(*key.as_int())] = &state;
  return states;
}

std::vector<std::size_t> numbers_in_order(const Metadata& metadata, const Value& weights) {
  std::unordered_map<std::string_view, std::size_t> places;
  const auto entries = mapping_entries(weights);
  for (std::size_t i = 0; i < entries->size(); ++i) {
    if (const std::string* key = (*entries)[i].first.as_string()) places.emplace(*key, i);
  }
  std::vector<std::size_t> order(metadata.backings.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return places.at(metadata.backings[a].key) < places.at(metadata.backings[b].key);
  });
  std::vector<std::size_t> numbers(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) numbers[order[i]] = i;
  return numbers;
}

Value names_of(const Metadata& metadata) {
  std::vector<Value> names;
  for (const Backing& backing : metadata.backings) {
    for (const Original& original : backing.originals)
      names.push_back(Value::string(original.name));
  }
  return Value::list(std::move(names));
}

}  // namespace fsdp::formats::fairscale
