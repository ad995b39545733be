// SPDX-License-Identifier: Apache-2.0
// State dicts of optimizers like Python's state_dict() and load_state_dict(): by number of the
// parameter.
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include "formats/bytes/base/text.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/state/load_problems.h"
#include "libfsdp/internal/state/optimizer_schema.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

using formats::cat;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

// Checks everything before it changes the optimizer.
class OptimizerLoad {
 public:
  OptimizerLoad(Optimizer& optimizer, const StateDict& state_dict)
      : optimizer_(optimizer),
        schema_(schema_of(optimizer)),
        groups_(list_at(state_dict, "param_groups")),
        states_(state_dict.at("state").dict()) {}

  void plan() {
    auto& groups = optimizer_.param_groups();
    FSDP_CHECK(groups_.size() == groups.size(), "expected ", groups.size(), " param groups, found ",
               groups_.size());
    for (std::size_t g = 0; g < groups.size(); ++g) plan_group(groups[g], groups_[g].dict(), g);
    for (const auto& [key, _] : states_.entries()) {
      if (used_.count(key) == 0)
        problems_.add("'" + text_of(key) + "' has a state, but is not in any param group");
    }
    problems_.check(cat("the state dict does not fit the optimizer (", schema_.name(), ")"));
  }

  void run() {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      schema_.set_options(optimizer_.param_groups()[g].options(), groups_[g].dict());
    optimizer_.state().clear();
    for (auto& [parameter, state] : new_) optimizer_.state()[parameter] = std::move(state);
  }

 private:
  void plan_group(OptimizerParamGroup& group, const StateDict& found, std::size_t number) {
    const StateList& ids = list_at(found, "params");
    const auto options = group.options().clone();
    try {
      schema_.set_options(*options, found);
    } catch (const c10::Error& error) {
      problems_.add(cat("group ", number, ": ", error.what_without_backtrace()));
    }
    if (ids.size() != group.params().size()) {
      problems_.add(cat("group ", number, ": expected ", group.params().size(),
                        " parameters, found ", ids.size()));
      return;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i].as_int() == nullptr) {
        problems_.add(cat("group ", number, ": expected numbers of parameters, found ",
                          ids[i].kind_name(),
                          "; a state dict by names goes through optim_state_dict_to_load, or "
                          "rekey_optim_state_dict"));
        return;
      }
      plan_parameter(group.params()[i], *ids[i].as_int(), *options);
    }
  }

  void plan_parameter(const at::Tensor& parameter, std::int64_t id,
                      const torch::optim::OptimizerOptions& options) {
    used_.emplace(id, true);
    ParamState state;
    if (const StateValue* const entry = states_.find(id))
      state = read(parameter, cat("state of parameter ", id), entry->dict(), options);
    std::unique_ptr<OptimizerParamState> made =
        state.empty() ? schema_.initial_state(parameter, options) : schema_.make_state(state);
    if (made) new_.emplace_back(parameter.unsafeGetTensorImpl(), std::move(made));
  }

  ParamState read(const at::Tensor& parameter, const std::string& what, const StateDict& entry,
                  const torch::optim::OptimizerOptions& options) {
    ParamState state;
    const auto& names = schema_.tensor_names();
    for (const auto& [key, value] : entry.entries()) {
      const std::string name = text_of(key);
      if (value.is_none()) continue;
      if (name == "step") {
        if (!schema_.counts_steps()) continue;
        try {
          state.step = step_in(value);
        } catch (const c10::Error& error) {
          problems_.add(cat(what, ": step: ", error.what_without_backtrace()));
        }
      } else if (std::find(names.begin(), names.end(), name) == names.end()) {
        problems_.add(cat(what, ": ", formats::quote(name), " is not a value that ", schema_.name(),
                          " keeps"));
      } else {
        const at::Tensor tensor =
            whole_in(value, cat(what, ": ", name), parameter.sizes(), problems_);
        if (tensor.defined())
          state.tensors.emplace_back(
              name, tensor.to(parameter.device(), parameter.scalar_type()).contiguous());
      }
    }
    check_complete(state, what, options);
    return state;
  }

  // Rejects incomplete states, because a step would read the missing values.
  void check_complete(ParamState& state, const std::string& what,
                      const torch::optim::OptimizerOptions& options) {
    if (state.empty()) return;
    if (schema_.counts_steps() && !state.step) {
      problems_.add(what + " has no step");
      state.step = 0;
    }
    for (const std::string& name : schema_.needed(options)) {
      const bool there = std::any_of(state.tensors.begin(), state.tensors.end(),
                                     [&](const auto& item) { return item.first == name; });
      if (!there) problems_.add(cat(what, " has no usable ", name));
    }
  }

  Optimizer& optimizer_;
  const OptimizerSchema& schema_;
  const StateList& groups_;
  const StateDict& states_;
  std::unordered_map<StateKey, bool> used_;
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> new_;
  LoadProblems problems_;
};

}  // namespace

StateDict optimizer_state_dict(const Optimizer& optimizer) {
  const OptimizerSchema& schema = schema_of(optimizer);
  StateDict states;
  StateList groups;
  std::int64_t id = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    StateDict entry = schema.options_of(group.options());
    StateList ids;
    for (const at::Tensor& parameter : group.params()) {
      const ParamState state = state_of(schema, optimizer, parameter);
      if (!state.empty())
        states.set(id,
                   values_of(state, [](const auto&, const at::Tensor& tensor) { return tensor; }));
      ids.emplace_back(id++);
    }
    entry.set("params", std::move(ids));
    groups.emplace_back(std::move(entry));
  }
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

void load_optimizer_state_dict(Optimizer& optimizer, const StateDict& state_dict) {
  const at::NoGradGuard no_grad;
  OptimizerLoad load(optimizer, state_dict);
  load.plan();
  load.run();
}

}  // namespace fsdp
