// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/map_optimizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/rewrite/optimizer_state.h"
#include "formats/state/rewrite/option_equality.h"

namespace fsdp::formats::map {
namespace {

using arrays::Array;
using arrays::ComputedTensors;

// States of PyTorch's optimizers that are one number for each parameter: the step count; ASGD's
// rate and mixture, NAdam's product.
constexpr std::array<std::string_view, 4> kSingles = {"step", "eta", "mu", "mu_product"};

Error not_along(const std::string& why) {
  return Error(ErrorCode::kUnsupported, why, {Remedy::kDropOptimizer});
}

class OptimizerMap {
 public:
  OptimizerMap(const Checkpoint& source, const StatePart& part, const Value& state,
               const Rules& rules, const MappedModel& model, const ParameterValue& parameter,
               ComputedTensors& made)
      : source_(source),
        part_(part),
        rules_(rules),
        model_(model),
        parameter_(parameter),
        made_(made),
        same_(source),
        optimizer_(read_optimizer(
            state, part.kind == PartKind::kFlattenedOptimizer,
            [](const Value& value) { return value; }, std::ref(same_))) {}

  Value run() {
    if (optimizer_.form == OptimizerForm::kIds && optimizer_.parameter_count() != 0) {
      throw Error(ErrorCode::kUnsupported,
                  "has its parameters by number, and a map needs their names",
                  {Remedy::kRekeyFirst});
    }
    for (OptimizerState::Group& group : optimizer_.groups) divide_fused(group);
    for (const auto& [name, state] : optimizer_.state) add_source_state(name, state);
    std::map<std::string, const RuleUse*> use_of;
    for (const RuleUse& use : model_.uses) {
      for (const std::string& source : use.sources) use_of.emplace(source, &use);
    }
    OptimizerState out;
    out.form = optimizer_.form;
    out.source = optimizer_.source;
    for (const OptimizerState::Group& group : optimizer_.groups)
      out.groups.push_back(mapped_group(group, use_of));
    for (const RuleUse& use : model_.uses) add_states(use, out);
    std::map<std::string, std::string> keys;
    for (const auto& group : out.groups) {
      for (const std::string& name : group.params) keys.emplace(name, name);
    }
    return write_optimizer(out, out.form, keys);
  }

 private:
  const Rule& rule_of(const RuleUse& use) const { return rules_.rules[use.rule]; }

  // The model's parameters that a fused parameter consists of; none if the parameter is not fused.
  struct Division {
    const Rule* rule = nullptr;
    std::vector<std::string> names;
  };
  Division division_of(const std::string& name) const {
    if (model_.shapes.contains(name)) return {};
    for (const Rule& rule : rules_.fused) {
      const auto captures = rule.from[0].match(name);
      if (!captures) continue;
      Division found{&rule, {}};
      for (const Pattern& pattern : rule.to) found.names.push_back(pattern.filled(*captures));
      const bool there = std::ranges::all_of(
          found.names, [&](const auto& one) { return model_.shapes.contains(one); });
      if (there) return found;
    }
    return {};
  }

  void divide_fused(OptimizerState::Group& group) const {
    std::vector<std::string> params;
    for (std::string& name : group.params) {
      Division division = division_of(name);
      if (division.names.empty()) division.names.push_back(std::move(name));
      for (std::string& one : division.names) params.push_back(std::move(one));
    }
    group.params = std::move(params);
  }

  // Adds the states of a parameter.  The states of a fused parameter become those of each part.
  void add_source_state(const std::string& name, const Value& state) {
    const Division division = division_of(name);
    if (division.rule == nullptr) {
      states_.emplace(name, state);
      return;
    }
    for (const auto& [key, value] : members_of(state)) {
      const TensorEntry* const tensor = tensor_of(value);
      if (tensor == nullptr || tensor->numel() == 1 || key.as_string() == nullptr) continue;
      const std::vector<Array> parts =
          apply_rule(*division.rule, {made_.source_array(*tensor_number(value))}, parameter_);
      for (std::size_t i = 0; i < division.names.size(); ++i) {
        if (parts.size() != division.names.size() ||
            parts[i].shape != model_.shapes.at(division.names[i])) {
          throw not_along(cat("the state ", quote(joined(place(name, key)), 200), " ",
                              shape_text(tensor->shape), " is not divided into ",
                              quote(division.names[i], 200), " ",
                              shape_text(model_.shapes.at(division.names[i]))));
        }
        divided_.emplace(std::pair(division.names[i], *key.as_string()), parts[i]);
      }
    }
    for (const std::string& one : division.names) states_.emplace(one, state);
  }

  // Returns a state that was divided; nullptr if it was not.
  const Array* divided(const std::string& name, const Value& key) const {
    if (key.as_string() == nullptr) return nullptr;
    const auto found = divided_.find({name, *key.as_string()});
    return found == divided_.end() ? nullptr : &found->second;
  }

  // Returns the targets that are parameters of their own: of tied targets only the first.
  std::vector<std::string> parameters_of(const RuleUse& use) const {
    const auto& operations = rule_of(use).operations;
    const bool ties = std::ranges::any_of(
        operations, [](const Operation& one) { return one.kind == OperationKind::kTie; });
    if (ties) return {use.targets.at(0)};
    return use.targets;
  }

  OptimizerState::Group mapped_group(const OptimizerState::Group& group,
                                     const std::map<std::string, const RuleUse*>& use_of) {
    const std::set<std::string> own(group.params.begin(), group.params.end());
    OptimizerState::Group out;
    out.options = group.options;
    out.source = without_names(group.source);
    for (const std::string& name : group.params) {
      const auto found = use_of.find(name);
      if (found == use_of.end()) {
        throw Error(ErrorCode::kKey, cat("parameter ", quote(name, 200), " is not in the model"),
                    {Remedy::kDropOptimizer});
      }
      const RuleUse& use = *found->second;
      for (const std::string& other : use.sources) {
        if (own.contains(other) || unties(use)) continue;
        throw not_along(cat(quote(name, 200), " and ", quote(other, 200),
                            " become one parameter, but are in different param groups"));
      }
      if (!seen_.insert(&use).second) continue;
      for (std::string& target : parameters_of(use)) out.params.push_back(std::move(target));
    }
    return out;
  }

  bool unties(const RuleUse& use) const {
    const auto& operations = rule_of(use).operations;
    return !operations.empty() && operations[0].kind == OperationKind::kUntie;
  }

  // Returns a group without its list of old names.
  static Value without_names(const Value& group) {
    const auto entries = mapping_entries(group);
    if (!entries) return group;
    std::vector<Value::Entry> kept;
    for (const auto& [key, value] : *entries) {
      if (key.as_string() == nullptr || *key.as_string() != "param_names")
        kept.emplace_back(key, value);
    }
    return mapping_like(group, std::move(kept));
  }

  void add_states(const RuleUse& use, OptimizerState& out) {
    std::vector<const Value*> states;
    std::vector<std::string> names;
    for (const std::string& name : use.sources) {
      const auto found = states_.find(name);
      if (found == states_.end()) continue;
      states.push_back(&found->second);
      names.push_back(name);
    }
    if (states.empty() || !seen_.contains(&use) || use.targets.empty()) return;
    if (states.size() != use.sources.size() && !unties(use))
      throw not_along(cat(quote(names[0], 200),
                          " has a state, but a parameter that it is joined with has none"));
    const Rule& rule = rule_of(use);
    for (const Operation& operation : rule.operations) {
      if (only_moves(operation)) continue;
      throw not_along(cat(place_of(rules_, rule), ": ", quote(names[0], 200), " goes through ",
                          operation_name(operation.kind),
                          ", which cannot be applied to its optimizer state"));
    }
    const std::vector<std::string> targets = parameters_of(use);
    std::vector<std::vector<Value::Entry>> made(targets.size());
    for (const auto& [key, value] : members_of(*states[0])) {
      std::vector<Value> values;
      for (std::size_t s = 0; s < states.size(); ++s)
        values.push_back(member(*states[s], key, names[s]));
      add_state(rule, names, key, values, targets, made);
    }
    for (std::size_t t = 0; t < targets.size(); ++t)
      out.state.emplace_back(targets[t], Value::dict(std::move(made[t])));
  }

  static Value member(const Value& state, const Value& name, const std::string& parameter) {
    const Value* const found =
        name.as_string() == nullptr ? nullptr : formats::member(state, *name.as_string());
    if (found != nullptr) return *found;
    throw not_along(cat("the state of ", quote(parameter, 200),
                        " has other members than the state of the parameter it is joined with"));
  }

  KeyPath place(const std::string& parameter, const Value& name) const {
    KeyPath path = part_.path;
    path.emplace_back("state");
    path.emplace_back(parameter);
    path.emplace_back(name.as_string() == nullptr ? std::string() : *name.as_string());
    return path;
  }

  const TensorEntry* tensor_of(const Value& value) const {
    const auto number = tensor_number(value);
    return number ? &source_.index().tensors[*number] : nullptr;
  }

  // Returns whether a state is one number for a whole parameter.  For a parameter of one element
  // the state's name decides, because its other states have one element too.
  bool is_single(const Value& key, const Value& state, const std::string& name) const {
    if (divided(name, key) != nullptr) return false;
    const TensorEntry* tensor = tensor_of(state);
    if (tensor == nullptr) return true;
    if (tensor->numel() != 1) return false;
    const auto parameter = model_.shapes.find(name);
    if (parameter == model_.shapes.end() || tensor->shape != parameter->second) return true;
    return key.as_string() != nullptr &&
           std::ranges::find(kSingles, *key.as_string()) != kSingles.end();
  }

  void add_state(const Rule& rule, const std::vector<std::string>& names, const Value& key,
                 const std::vector<Value>& values, const std::vector<std::string>& targets,
                 std::vector<std::vector<Value::Entry>>& made) {
    bool single = true;
    for (std::size_t i = 0; i < values.size(); ++i)
      single = single && is_single(key, values[i], names[i]);
    if (single) {
      for (std::size_t i = 1; i < values.size(); ++i) {
        if (same_(values[0], values[i])) continue;
        throw not_along(cat("the states ", quote(joined(place(names[0], key)), 200), " and ",
                            quote(joined(place(names[i], key)), 200),
                            " differ, and their parameters become one"));
      }
      for (std::size_t t = 0; t < targets.size(); ++t)
        made[t].emplace_back(key, copied(values[0], place(targets[t], key)));
      return;
    }
    std::vector<Array> arrays;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (const Array* const part = divided(names[i], key)) {
        arrays.push_back(*part);
        continue;
      }
      const TensorEntry* tensor = tensor_of(values[i]);
      const auto parameter = model_.shapes.find(names[i]);
      if (tensor == nullptr || parameter == model_.shapes.end() ||
          tensor->shape != parameter->second) {
        throw not_along(cat("the state ", quote(joined(place(names[i], key)), 200),
                            tensor == nullptr ? "" : " " + shape_text(tensor->shape),
                            " does not have its parameter's shape"));
      }
      arrays.push_back(made_.source_array(*tensor_number(values[i])));
    }
    Rule moves = rule;
    std::erase_if(moves.operations,
                  [](const Operation& one) { return one.kind == OperationKind::kCast; });
    arrays = apply_rule(moves, std::move(arrays), parameter_);
    for (std::size_t t = 0; t < targets.size(); ++t)
      made[t].emplace_back(key, made_.separate(place(targets[t], key), arrays.at(t)));
  }

  // Returns a copy with its own storage: optimizers change their states in place.
  Value copied(const Value& value, KeyPath path) {
    const auto number = tensor_number(value);
    return number ? made_.separate(std::move(path), made_.source_array(*number)) : value;
  }

  const Checkpoint& source_;
  const StatePart& part_;
  const Rules& rules_;
  const MappedModel& model_;
  const ParameterValue& parameter_;
  ComputedTensors& made_;
  OptionEquality same_;
  OptimizerState optimizer_;
  std::unordered_map<std::string, Value> states_;
  std::map<std::pair<std::string, std::string>, Array> divided_;  // by parameter and state
  std::set<const RuleUse*> seen_;
};

}  // namespace

Value map_optimizer_state(const Checkpoint& source, const StatePart& part, const Value& state,
                          const Rules& rules, const MappedModel& model,
                          const ParameterValue& parameter, ComputedTensors& made) {
  return OptimizerMap(source, part, state, rules, model, parameter, made).run();
}

}  // namespace fsdp::formats::map
