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

const Value* option_of(const std::vector<Value::Entry>& group, std::string_view name) {
  const auto at = std::ranges::find_if(group, [&](const Value::Entry& one) {
    return one.first.as_string() != nullptr && *one.first.as_string() == name;
  });
  return at == group.end() ? nullptr : &at->second;
}

bool is_number(const Value* value, double number) {
  if (value == nullptr) return false;
  if (value->kind() == ValueKind::kFloat) return value->as_float() == number;
  return value->as_int() && static_cast<double>(*value->as_int()) == number;
}

// Refuses the optimizer that Megatron-Core's --ckpt-format torch saves beside a rank's model: flat
// buffers, in an order that the files do not tell.  Source: get_parameter_state_dp_zero() of
// megatron/core/optimizer/distrib_optimizer.py.
void refuse_rank_buffers(const Value& content, const std::string& path) {
  for (const Leaf& leaf : leaves_of(content)) {
    const auto* const last =
        leaf.path.empty() ? nullptr : std::get_if<std::string>(&leaf.path.back());
    if (last == nullptr || *last != "buckets_coalesced") continue;
    const KeyPath place(leaf.path.begin(), leaf.path.end() - 1);
    throw Error(
        ErrorCode::kUnsupported,
        cat(path, ": ", place.empty() ? "the top level" : quote(joined(place), 200),
            " is the optimizer of a rank, in buffers that do not tell where a parameter is; "
            "Megatron's own command of the training converts the checkpoint, with --load PATH "
            "--ckpt-convert-format torch_dist --ckpt-convert-save OUT; to go on without the "
            "optimizer: --exclude '**distrib_optim**'"));
  }
}

// Checks that each state has its parameter's shape.
void check_states(const ModuleState& state, const std::string& path) {
  std::unordered_map<std::string_view, const arrays::Array*> parameters;
  for (const NamedArray& one : state.model) parameters.emplace(one.name, &one.array);
  for (const auto& [kind, arrays] : state.states) {
    for (const NamedArray& one : arrays) {
      const auto found = parameters.find(one.name);
      if (found == parameters.end()) {
        throw Error(ErrorCode::kKey,
                    cat(path, ": optimizer state ", quote(kind, 200), " of ", quote(one.name, 200),
                        ": the model has no such parameter"));
      }
      if (found->second->shape == one.array.shape) continue;
      throw Error(ErrorCode::kShape,
                  cat(path, ": optimizer state ", quote(kind, 200), " of ", quote(one.name, 200),
                      ": has shape ", shape_text(one.array.shape), ", expected ",
                      shape_text(found->second->shape), " as its parameter"));
    }
  }
}

// Joins the halves of the first matrices of gated linear units.
void join_halves(std::vector<NamedArray>& arrays, const std::string& path) {
  const auto stem_of = [](const std::string& name) {
    const bool half = name.ends_with("_w") || name.ends_with("_v");
    const std::string stem = half ? name.substr(0, name.size() - 2) : std::string();
    return is_first_linear(stem) ? stem : std::string();
  };
  std::unordered_map<std::string, arrays::Array> halves;
  for (const NamedArray& one : arrays) {
    if (!stem_of(one.name).empty()) halves.emplace(one.name, one.array);
  }
  std::vector<NamedArray> out;
  for (NamedArray& one : arrays) {
    const std::string stem = stem_of(one.name);
    if (stem.empty()) {
      out.push_back(std::move(one));
      continue;
    }
    const bool gate = one.name.ends_with("_w");
    const auto other = halves.find(stem + (gate ? "_v" : "_w"));
    if (other == halves.end()) {
      throw Error(ErrorCode::kKey,
                  cat(path, ": ", quote(one.name, 200), ": ",
                      quote(stem + (gate ? "_v" : "_w"), 200), ", its other half, is missing"));
    }
    if (!gate) continue;
    const arrays::Array& input = other->second;
    if (input.shape != one.array.shape || input.dtype != one.array.dtype ||
        one.array.shape.empty()) {
      throw Error(ErrorCode::kShape,
                  cat(path, ": ", quote(one.name, 200), ": has shape ", shape_text(one.array.shape),
                      ", its other half ", shape_text(input.shape)));
    }
    out.push_back({stem, arrays::concatenated(std::array{one.array, input}, 0)});
  }
  arrays = std::move(out);
}

// Reads the model and the optimizer by names from a content.
class StateDictReader {
 public:
  StateDictReader(const Checkpoint& source, const Value& content, arrays::ComputedTensors& made)
      : source_(source), content_(content), made_(made) {}

  ModuleState run() {
    refuse_rank_buffers(content_, source_.description().path);
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
      out_.model.push_back({*key.as_string(), made_.source_array(*number)});
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
                  cat(source_.description().path, ": ", quote(joined(part.path), 200),
                      ": has its parameters by number, and Megatron-Core needs their names"),
                  {Remedy::kRekeyFirst});
    }
    note(part.path, taken);
    for (const auto& [name, state] : optimizer.state) {
      for (const auto& [key, value] : members_of(state)) {
        const auto number = tensor_number(value);
        if (number && key.as_string() != nullptr && *key.as_string() != "step")
          out_.states[*key.as_string()].push_back({name, made_.source_array(*number)});
      }
    }
  }

  static void note(const KeyPath& path, std::set<std::string>& taken) {
    if (const auto* step = std::get_if<std::string>(&path.front())) taken.insert(*step);
  }

  const Checkpoint& source_;
  const Value& content_;
  arrays::ComputedTensors& made_;
  ModuleState out_;
};

}  // namespace

ModuleState read_state_dict(const Checkpoint& source, const Value& content,
                            arrays::ComputedTensors& made) {
  return StateDictReader(source, content, made).run();
}

void complete(ModuleState& state, const std::string& path) {
  if (state.model.empty()) throw Error(ErrorCode::kKey, path + ": holds no tensors of a model");
  join_halves(state.model, path);
  for (auto& [kind, arrays] : state.states) join_halves(arrays, path);
  check_states(state, path);
}

bool is_of_experts(const std::vector<Value::Entry>& group) {
  const Value* const value = option_of(group, "is_expert_parallel");
  return value != nullptr && value->as_bool() && *value->as_bool();
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
          state.groups.size() == 1 || (is_of_experts(group) == experts &&
                                       is_number(option_of(group, "wd_mult"), decays ? 1.0 : 0.0));
      if (!fits) continue;
      ++fitting;
      found = g;
    }
    if (fitting != 1) {
      throw Error(ErrorCode::kUnsupported,
                  cat(path, ": optimizer: ", fitting, " of ", state.groups.size(),
                      " groups of parameters are for ", quote(one.name, 200),
                      ", expected 1 by is_expert_parallel and wd_mult"),
                  {Remedy::kExclude, "optimizer.**"});
    }
    out.push_back(*found);
  }
  return out;
}

Value state_dict_content(const ModuleState& state, const std::string& path,
                         arrays::ComputedTensors& made) {
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
    entries.emplace_back(Value::string(name), made.shared({name}, one.array));
  }
  if (!state.states.empty()) {
    std::map<std::string, std::vector<Value::Entry>> by_name;
    for (const auto& [kind, arrays] : state.states) {
      for (const NamedArray& one : arrays) {
        const std::string name = name_of(one.name);
        by_name[name].emplace_back(Value::string(kind),
                                   made.separate({"optimizer", "state", name, kind}, one.array));
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
