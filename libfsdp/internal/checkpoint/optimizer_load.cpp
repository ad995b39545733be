// SPDX-License-Identifier: Apache-2.0
// Loads an optimizer's state from a checkpoint, in any form that it was saved in.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "formats/bytes/base/cast.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/value_compare.h"
#include "formats/state/rewrite/optimizer_state.h"
#include "formats/state/rewrite/parameter_order.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/checkpoint/load_plan.h"
#include "libfsdp/internal/checkpoint/training_parts.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp::internal {
namespace {

using formats::OptimizerForm;
using formats::OptimizerState;
using formats::Value;

using Names = std::vector<std::vector<std::string>>;  // of the parameters of each group

Names names_of(const ShardedModule& model, const torch::optim::Optimizer& optimizer) {
  Names result;
  const StateDict state = model.state_dict();
  const StateDict own = sharded_optim_state_dict(model, optimizer);
  for (const StateValue& group : *own.at("param_groups").as_list()) {
    std::vector<std::string>& names = result.emplace_back();
    for (const StateValue& name : *group.dict().at("params").as_list())
      names.push_back(*name.as_string());
    sort_as_ids(names, model, state);
  }
  return result;
}

// Returns the module's parameters in its order, each under its first name.
std::vector<std::pair<std::string, StateValue>> parameters_of(const ShardedModule& model) {
  std::unordered_set<std::string> further;
  for (const Unit* unit : model.units()) {
    for (const auto& parameter : unit->parameters) {
      const std::vector<std::string> names = model.names_of(*parameter);
      further.insert(std::next(names.begin()), names.end());
    }
  }
  std::unordered_set<std::string> ignored;
  for (const auto& [name, _] : model.unmanaged()) ignored.insert(name);
  std::vector<std::pair<std::string, StateValue>> result;
  const StateDict state = model.state_dict();
  for (const auto& [key, value] : state.entries()) {
    const std::string name = text_of(key);
    const bool parameter = value.as_sharded() != nullptr || ignored.count(name) != 0;
    if (parameter && further.count(name) == 0) result.emplace_back(name, value);
  }
  return result;
}

class OptimizerPlan {
 public:
  OptimizerPlan(LoadPlan& plan, CheckpointReader& reader, const ShardedModule& model,
                const torch::optim::Optimizer& optimizer, std::string key,
                std::vector<std::string>& left_out)
      : plan_(plan),
        reader_(reader),
        own_(names_of(model, optimizer)),
        key_(std::move(key)),
        left_out_(left_out) {
    for (auto& [name, value] : parameters_of(model)) {
      order_.parameters.push_back({name, shape_of(value)});
      parameters_.emplace(name, std::move(value));
    }
    order_.origin = "this model";
  }

  StateDict run(const Value& part, bool flattened) {
    std::unordered_map<std::size_t, Value> known;  // each is read once
    const auto read = [&](const Value& value) {
      const auto number = formats::deferred_number(value);
      if (!number) return value;
      if (!known.contains(*number))
        known.emplace(*number, formats::resolved(reader_.checkpoint(), value));
      return known.at(*number);
    };
    const auto same = [&](const Value& a, const Value& b) {
      const auto compared = formats::compare_values(read(a), read(b));
      return compared.same && compared.storages.empty();
    };
    const OptimizerState found = formats::read_optimizer(part, flattened, read, same);
    const auto names = names_in(found);
    std::unordered_set<std::string> wanted;
    for (const auto& group : own_) wanted.insert(group.begin(), group.end());
    StateList groups;
    std::unordered_set<std::string> listed;
    for (const auto& group : found.groups) {
      StateList params;
      for (const std::string& id : group.params) {
        const std::string& name = names.at(id);
        listed.insert(name);
        if (wanted.count(name) != 0) {
          params.emplace_back(name);
        } else {
          plan_.unexpected(key_ + ": " + name);
        }
      }
      StateDict options = options_of(group);
      options.set("params", std::move(params));
      groups.emplace_back(std::move(options));
    }
    for (const auto& group : own_) {
      for (const std::string& name : group) {
        if (listed.count(name) == 0)
          plan_.problem("'" + key_ + "': has no parameter '" + name + "', which the optimizer has");
      }
    }
    StateDict states;
    for (const auto& [id, state] : found.state) {
      const std::string& name = names.at(id);
      if (wanted.count(name) != 0) states.set(name, state_of(name, state));
    }
    return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
  }

 private:
  static std::vector<std::int64_t> shape_of(const StateValue& parameter) {
    if (const auto* sharded = parameter.as_sharded()) return sharded->layout.whole_shape();
    return parameter.as_tensor()->sizes().vec();
  }

  std::map<std::string, std::string> names_in(const OptimizerState& found) const {
    std::map<std::string, std::string> names;
    if (found.form != OptimizerForm::kIds) {
      for (const auto& group : found.groups) {
        for (const std::string& name : group.params) names.emplace(name, name);
      }
      return names;
    }
    const bool fits =
        std::equal(found.groups.begin(), found.groups.end(), own_.begin(), own_.end(),
                   [](const auto& group, const auto& own) {
                     return group.params.size() == own.size() && group.param_names.empty();
                   });
    if (!fits) return formats::names_of_ids(found, order_);
    for (std::size_t g = 0; g < own_.size(); ++g) {
      for (std::size_t i = 0; i < own_[g].size(); ++i)
        names.emplace(found.groups[g].params[i], own_[g][i]);
    }
    return names;
  }

  StateDict options_of(const OptimizerState::Group& group) {
    StateDict result;
    const auto entries = group.options.empty() ? formats::mapping_entries(group.source)
                                               : std::span<const Value::Entry>(group.options);
    if (!entries) return result;
    for (const auto& [name, value] : *entries) {
      if (name.as_string() == nullptr || *name.as_string() == "params") continue;
      if (*name.as_string() == "param_names") continue;
      result.set(*name.as_string(),
                 reader_.value(value, key_ + ".param_groups." + *name.as_string(), left_out_));
    }
    return result;
  }

  StateDict state_of(const std::string& name, const Value& state) {
    const StateValue& parameter = parameters_.at(name);
    StateDict result;
    const auto entries = formats::mapping_entries(state);
    FSDP_CHECK(entries.has_value(), "'", key_, "': the state of '", name, "' is a ",
               formats::kind_name(state.kind()), ", expected a dict");
    for (const auto& [slot, value] : *entries) {
      if (slot.as_string() == nullptr) continue;
      const std::string key = key_ + ".state." + name + "." + *slot.as_string();
      const auto number = formats::tensor_number(value);
      if (!number) {
        result.set(*slot.as_string(), reader_.value(value, key, left_out_));
        continue;
      }
      StateValue target = target_for(parameter, *slot.as_string(), reader_.tensor(*number));
      plan_.fill(key, *number, target);
      result.set(*slot.as_string(), std::move(target));
    }
    return result;
  }

  // Returns memory to read a slot of a parameter into.  If the slot has the parameter's shape: this
  // rank's rows in the parameter's dtype, as PyTorch's optimizers load it.
  static StateValue target_for(const StateValue& parameter, const std::string& slot,
                               const formats::TensorEntry& entry) {
    const ShardedTensor* const sharded = parameter.as_sharded();
    const at::Tensor& own = sharded != nullptr ? sharded->local : *parameter.as_tensor();
    const bool alike = slot != "step" && at::IntArrayRef(entry.shape) == shape_of(parameter);
    const bool casts = alike && formats::can_cast(entry.dtype, dtype_of(own.scalar_type()));
    const auto type = casts ? own.scalar_type() : scalar_type_of(entry.dtype);
    if (!alike || sharded == nullptr) return at::empty(entry.shape, type);
    ShardedTensor result = *sharded;
    result.local = at::empty(own.sizes(), type);
    return result;
  }

  LoadPlan& plan_;
  CheckpointReader& reader_;
  const Names own_;
  const std::string key_;
  std::vector<std::string>& left_out_;
  formats::ParameterOrder order_;
  std::unordered_map<std::string, StateValue> parameters_;
};

}  // namespace

StateDict plan_optimizer(LoadPlan& plan, CheckpointReader& reader, const ShardedModule& model,
                         const torch::optim::Optimizer& optimizer, const Value& part,
                         bool flattened, const std::string& key,
                         std::vector<std::string>& left_out) {
  return OptimizerPlan(plan, reader, model, optimizer, key, left_out).run(part, flattened);
}

}  // namespace fsdp::internal
