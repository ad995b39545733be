// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/module_state.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/megatron/names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/rewrite/optimizer_state.h"
#include "formats/state/rewrite/option_equality.h"

namespace fsdp::formats::megatron {
namespace {

bool number_option(std::span<const Value::Entry> group, std::string_view name, double expected) {
  for (const auto& [key, value] : group) {
    if (key.as_string() == nullptr || *key.as_string() != name) continue;
    if (value.kind() == ValueKind::kFloat) return value.as_float() == expected;
    if (value.as_int()) return static_cast<double>(*value.as_int()) == expected;
  }
  return false;
}

bool flag_option(std::span<const Value::Entry> group, std::string_view name, bool otherwise) {
  for (const auto& [key, value] : group) {
    if (key.as_string() != nullptr && *key.as_string() == name && value.as_bool())
      return *value.as_bool();
  }
  return otherwise;
}

// Reads the model and the optimizer by names from a content.
class StateDictReader {
 public:
  StateDictReader(const Checkpoint& source, const Value& content, arrays::References& references)
      : source_(source), content_(content), references_(references) {}

  ModuleState run() {
    std::size_t models = 0;
    std::set<std::string> taken;
    for (const StatePart& part : state_parts_of(content_)) {
      if (part.kind == PartKind::kModel) {
        ++models;
        read_model(part, taken);
      } else if (part.kind != PartKind::kOther) {
        read_optimizer_part(part, taken);
      }
    }
    if (models != 1) {
      throw Error(models == 0 ? ErrorCode::kKey : ErrorCode::kUnsupported,
                  cat(source_.description().path, ": holds ", models,
                      " models, and a folder of Megatron-Core holds one"),
                  models == 0 ? Hint{} : Hint{Remedy::kChooseOne});
    }
    for (const auto& [key, value] : members_of(content_)) {
      const std::string* name = key.as_string();
      if (name == nullptr || !taken.contains(*name)) out_.others.emplace_back(key, value);
    }
    check_states(out_, source_.description().path);
    return std::move(out_);
  }

 private:
  void read_model(const StatePart& part, std::set<std::string>& taken) {
    const Value model = part.path.empty() ? content_ : *at_path(content_, part.path);
    if (!part.path.empty()) note(part.path, taken);
    for (const auto& [key, value] : members_of(model)) {
      const auto number = tensor_number(value);
      if (!number) continue;
      if (part.path.empty()) taken.insert(*key.as_string());
      out_.model.push_back({*key.as_string(), references_.source_array(*number)});
    }
  }

  void read_optimizer_part(const StatePart& part, std::set<std::string>& taken) {
    OptionEquality same(source_);
    const OptimizerState optimizer = read_optimizer(
        *at_path(content_, part.path), part.kind == PartKind::kFlattenedOptimizer,
        [](const Value& value) { return value; },
        [&](const Value& a, const Value& b) { return same(a, b); });
    if (optimizer.form == OptimizerForm::kIds && optimizer.parameter_count() != 0) {
      throw Error(ErrorCode::kUnsupported,
                  cat(source_.description().path, ": ", quote(joined(part.path), kMaxKey),
                      ": has its parameters by number, and Megatron-Core needs their names"),
                  {Remedy::kRekeyFirst});
    }
    note(part.path, taken);
    for (const auto& [name, state] : optimizer.state) {
      for (const auto& [key, value] : members_of(state)) {
        const auto number = tensor_number(value);
        if (number && key.as_string() != nullptr && *key.as_string() != "step")
          out_.states[*key.as_string()].push_back({name, references_.source_array(*number)});
      }
    }
  }

  static void note(const KeyPath& path, std::set<std::string>& taken) {
    if (const auto* step = std::get_if<std::string>(&path.front())) taken.insert(*step);
  }

  const Checkpoint& source_;
  const Value& content_;
  arrays::References& references_;
  ModuleState out_;
};

}  // namespace

ModuleState read_state_dict(const Checkpoint& source, const Value& content,
                            arrays::References& references) {
  return StateDictReader(source, content, references).run();
}

void check_states(const ModuleState& state, const std::string& path) {
  std::unordered_map<std::string_view, const arrays::Array*> parameters;
  for (const NamedArray& one : state.model) parameters.emplace(one.name, &one.array);
  for (const auto& [kind, arrays] : state.states) {
    for (const NamedArray& one : arrays) {
      const auto found = parameters.find(one.name);
      if (found == parameters.end()) {
        throw Error(ErrorCode::kKey,
                    cat(path, ": optimizer state ", quote(kind, kMaxKey), " of ",
                        quote(one.name, kMaxKey), ": the model has no such parameter"));
      }
      if (found->second->shape == one.array.shape) continue;
      throw Error(ErrorCode::kShape,
                  cat(path, ": optimizer state ", quote(kind, kMaxKey), " of ",
                      quote(one.name, kMaxKey), ": has shape ", shape_text(one.array.shape),
                      ", expected ", shape_text(found->second->shape), " as its parameter"));
    }
  }
}

void join_halves(std::vector<NamedArray>& arrays, const std::string& path) {
  std::unordered_map<std::string, std::size_t> inputs;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].name.ends_with("_v")) inputs.emplace(arrays[i].name, i);
  }
  std::vector<NamedArray> out;
  std::size_t joined_count = 0;
  for (NamedArray& one : arrays) {
    const std::string stem =
        one.name.substr(0, one.name.size() - std::min<std::size_t>(2, one.name.size()));
    if (!is_first_linear(stem) || !(one.name.ends_with("_w") || one.name.ends_with("_v"))) {
      out.push_back(std::move(one));
      continue;
    }
    if (one.name.ends_with("_v")) continue;
    const auto found = inputs.find(stem + "_v");
    if (found == inputs.end()) {
      throw Error(ErrorCode::kKey,
                  cat(path, ": ", quote(one.name, kMaxKey), ": ", quote(stem + "_v", kMaxKey),
                      ", its other half, is missing"));
    }
    const arrays::Array& other = arrays[found->second].array;
    if (other.shape != one.array.shape || other.dtype != one.array.dtype ||
        one.array.shape.empty()) {
      throw Error(ErrorCode::kShape,
                  cat(path, ": ", quote(one.name, kMaxKey), ": has shape ",
                      shape_text(one.array.shape), ", its other half ", shape_text(other.shape)));
    }
    ++joined_count;
    const std::array<arrays::Array, 2> halves = {one.array, other};
    out.push_back({stem, arrays::concatenated(halves, 0)});
  }
  if (joined_count != inputs.size()) {
    for (const auto& [name, at] : inputs) {
      const std::string stem = name.substr(0, name.size() - 2);
      if (!is_first_linear(stem)) continue;
      const bool joined_here = std::any_of(out.begin(), out.end(),
                                           [&](const NamedArray& one) { return one.name == stem; });
      if (!joined_here) {
        throw Error(ErrorCode::kKey,
                    cat(path, ": ", quote(name, kMaxKey), ": ", quote(stem + "_w", kMaxKey),
                        ", its other half, is missing"));
      }
    }
  }
  arrays = std::move(out);
}

std::vector<std::size_t> groups_of(const ModuleState& state, const std::string& path) {
  std::vector<std::size_t> out;
  for (const NamedArray& one : state.model) {
    const bool experts = one.name.find(".experts.") != std::string::npos;
    const bool decays = one.array.shape.size() > 1 && !one.name.ends_with(".bias");
    std::optional<std::size_t> found;
    std::size_t fitting = 0;
    for (std::size_t g = 0; g < state.groups.size(); ++g) {
      const auto& group = state.groups[g];
      const bool fits =
          state.groups.size() == 1 || (flag_option(group, "is_expert_parallel", false) == experts &&
                                       number_option(group, "wd_mult", decays ? 1.0 : 0.0));
      if (!fits) continue;
      ++fitting;
      found = g;
    }
    if (fitting != 1) {
      throw Error(ErrorCode::kUnsupported,
                  cat(path, ": optimizer: ", fitting, " of ", state.groups.size(),
                      " groups of parameters are for ", quote(one.name, kMaxKey),
                      ", expected 1 by is_expert_parallel and wd_mult"),
                  {Remedy::kExclude, "optimizer.**"});
    }
    out.push_back(*found);
  }
  return out;
}

Value state_dict_content(const ModuleState& state, const std::string& path,
                         arrays::References& references) {
  std::set<std::string> experts;  // layers that have some
  for (const NamedArray& one : state.model) {
    const auto layer = layer_of(one.name);
    if (layer && expert_of(one.name))
      experts.insert(layer->before + std::to_string(layer->number.value_or(-1)));
  }
  const auto name_of = [&](const std::string& name) {
    const auto layer = layer_of(name);
    const bool has =
        layer && experts.contains(layer->before + std::to_string(layer->number.value_or(-1)));
    return has ? norm_name(name) : name;
  };
  std::vector<Value::Entry> entries;
  for (const NamedArray& one : state.model) {
    const std::string name = name_of(one.name);
    entries.emplace_back(Value::string(name), references.shared({name}, one.array));
  }
  if (!state.states.empty()) {
    std::map<std::string, std::vector<Value::Entry>> by_name;
    for (const auto& [kind, arrays] : state.states) {
      for (const NamedArray& one : arrays) {
        const std::string name = name_of(one.name);
        by_name[name].emplace_back(
            Value::string(kind),
            references.separate({"optimizer", "state", name, kind}, one.array));
      }
    }
    std::vector<std::vector<Value>> params(std::max<std::size_t>(1, state.groups.size()));
    const std::vector<std::size_t> groups = state.groups.empty()
                                                ? std::vector<std::size_t>(state.model.size())
                                                : groups_of(state, path);
    std::vector<Value::Entry> states;
    for (std::size_t i = 0; i < state.model.size(); ++i) {
      const std::string name = name_of(state.model[i].name);
      const auto found = by_name.find(name);
      if (found == by_name.end()) continue;
      params[groups[i]].push_back(Value::string(name));
      states.emplace_back(Value::string(name), Value::dict(std::move(found->second)));
    }
    std::vector<Value> param_groups;
    for (std::size_t g = 0; g < params.size(); ++g) {
      std::vector<Value::Entry> group = {
          {Value::string("params"), Value::list(std::move(params[g]))}};
      if (g < state.groups.size())
        group.insert(group.end(), state.groups[g].begin(), state.groups[g].end());
      param_groups.push_back(Value::dict(std::move(group)));
    }
    entries.emplace_back(
        Value::string("optimizer"),
        Value::dict({{Value::string("state"), Value::dict(std::move(states))},
                     {Value::string("param_groups"), Value::list(std::move(param_groups))}}));
  }
  for (const Value::Entry& other : state.others) entries.push_back(other);
  return Value::dict(std::move(entries));
}

}  // namespace fsdp::formats::megatron
