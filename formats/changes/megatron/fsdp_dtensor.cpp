// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/megatron/module_state.h"
#include "formats/changes/megatron/names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/rewrite/option_equality.h"

namespace fsdp::formats::megatron {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kModule = "module.";
constexpr std::string_view kStates = "optimizer.state.";
constexpr std::string_view kGroups = "optimizer.param_to_group_meta.";
// The wrappers of Megatron-Core and Megatron-FSDP in front of names in optimizers.
constexpr std::string_view kWrappers = "module.module.module.";

std::string_view without_wrappers(std::string_view name) {
  while (name.starts_with(kModule)) name.remove_prefix(kModule.size());
  return name;
}

// Returns the key split at its last dot, which stands before the name of a state or an option.
std::pair<std::string, std::string> at_last_dot(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return {std::string(key), {}};
  return {std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
}

// Splits the first matrices of gated linear units into halves.  A perceptron is gated if its first
// matrix has two rows for each column of the second.
class Halves {
 public:
  explicit Halves(const ModuleState& state) {
    for (const NamedArray& one : state.model) shapes_.emplace(one.name, one.array.shape);
  }

  std::vector<NamedArray> of(const NamedArray& one) const {
    if (!is_first_linear(one.name) || !is_gated(one)) return {one};
    const std::int64_t rows = one.array.shape[0] / 2;
    return {{one.name + "_w", arrays::sliced(one.array, 0, 0, rows)},
            {one.name + "_v", arrays::sliced(one.array, 0, rows, rows)}};
  }

 private:
  bool is_gated(const NamedArray& one) const {
    const auto second = shapes_.find(second_linear(one.name));
    return second != shapes_.end() && second->second.size() == 2 && !one.array.shape.empty() &&
           one.array.shape[0] == 2 * second->second[1];
  }

  std::unordered_map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace

ModuleState read_fsdp_dtensor(const Checkpoint& source, const Value& content,
                              arrays::ComputedTensors& made) {
  const std::string& path = source.description().path;
  ModuleState out;
  std::vector<Leaf> others;
  std::vector<std::string> grouped;  // parameters, in order
  std::unordered_map<std::string, std::vector<Value::Entry>> options;
  for (Leaf& leaf : leaves_of(content)) {
    const std::string_view key = leaf.key;
    const auto number = tensor_number(leaf.value);
    if (number && key.starts_with(kModel)) {
      out.model.push_back(
          {std::string(without_wrappers(key.substr(kModel.size()))), made.source_array(*number)});
    } else if (number && key.starts_with(kStates)) {
      const auto [name, state] = at_last_dot(without_wrappers(key.substr(kStates.size())));
      // Leaves the steps of parameters out: Megatron-Core's own optimizers count the steps of a
      // group, among its options.
      if (state == "step") {
        ++out.left_out;
        continue;
      }
      out.states[state].push_back({name, made.source_array(*number)});
    } else if (key.starts_with(kGroups)) {
      const auto [name, option] = at_last_dot(without_wrappers(key.substr(kGroups.size())));
      auto& of_name = options[name];
      if (of_name.empty()) grouped.push_back(name);
      of_name.emplace_back(Value::string(option), leaf.value);
    } else if (key.starts_with("optimizer.") || key.starts_with("rng_state")) {
      ++out.left_out;
    } else {
      others.push_back(std::move(leaf));
    }
  }
  OptionEquality same(source);
  for (const std::string& name : grouped) {
    const Value group = Value::dict(options.at(name));
    const bool known = std::ranges::any_of(
        out.groups, [&](const auto& one) { return same(Value::dict(one), group); });
    if (!known) out.groups.push_back(options.at(name));
  }
  if (!others.empty()) {
    const Value rest = nested(others);
    const auto entries = mapping_entries(rest);
    if (entries) out.others.assign(entries->begin(), entries->end());
  }
  complete(out, path);
  return out;
}

Value fsdp_dtensor_content(const ModuleState& state, const std::string& path,
                           arrays::ComputedTensors& made) {
  const Halves halves(state);
  std::unordered_map<std::string, const arrays::Array*> masters;
  for (const auto& [kind, arrays] : state.states) {
    if (kind != kMasterState && kind != "fp32_param") continue;
    for (const NamedArray& one : arrays) masters.emplace(one.name, &one.array);
  }
  std::vector<Value::Entry> model;
  std::vector<Value::Entry> groups;
  const std::vector<std::size_t> group_of =
      state.groups.empty() ? std::vector<std::size_t>() : groups_of(state, path);
  for (std::size_t i = 0; i < state.model.size(); ++i) {
    NamedArray one = state.model[i];
    if (const auto master = masters.find(one.name); master != masters.end())
      one.array = *master->second;
    for (const NamedArray& part : halves.of(one)) {
      const std::string name = cat(kModule, part.name);
      model.emplace_back(Value::string(name), made.shared({"model", name}, part.array));
    }
    if (!group_of.empty()) {
      groups.emplace_back(Value::string(cat(kWrappers, one.name)),
                          Value::dict(state.groups[group_of[i]]));
    }
  }
  std::vector<Value::Entry> entries = {{Value::string("model"), Value::dict(std::move(model))}};
  std::vector<Value::Entry> states;
  std::unordered_map<std::string, std::size_t> place;
  std::vector<std::vector<Value::Entry>> kinds;
  std::vector<std::string> names;
  for (const auto& [kind, arrays] : state.states) {
    if (kind == kMasterState || kind == "fp32_param") continue;
    for (const NamedArray& one : arrays) {
      for (const NamedArray& part : halves.of(one)) {
        const std::string name = cat(kWrappers, part.name);
        const auto [found, added] = place.emplace(name, names.size());
        if (added) {
          names.push_back(name);
          kinds.emplace_back();
        }
        kinds[found->second].emplace_back(
            Value::string(kind), made.separate({"optimizer", "state", name, kind}, part.array));
      }
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    states.emplace_back(Value::string(names[i]), Value::dict(std::move(kinds[i])));
  if (!states.empty()) {
    entries.emplace_back(
        Value::string("optimizer"),
        Value::dict({{Value::string("state"), Value::dict(std::move(states))},
                     {Value::string("param_to_group_meta"), Value::dict(std::move(groups))}}));
  }
  bool versioned = false;
  for (const auto& [key, value] : state.others) {
    if (key.as_string() == nullptr || *key.as_string() == "content_metadata") continue;
    versioned = versioned || *key.as_string() == "checkpoint_version";
    entries.emplace_back(key, value);
  }
  if (!versioned) entries.emplace_back(Value::string("checkpoint_version"), Value::floating(3.0));
  return Value::dict(std::move(entries));
}

}  // namespace fsdp::formats::megatron
