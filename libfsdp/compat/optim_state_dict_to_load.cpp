// SPDX-License-Identifier: Apache-2.0
// Converts state by the names of parameters to the input for the optimizer on this rank.
#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include "formats/bytes/base/text.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/state/load_problems.h"
#include "libfsdp/internal/state/optim_targets.h"
#include "libfsdp/internal/state/optimizer_schema.h"
#include "libfsdp/internal/state/state_entries.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

using formats::cat;
using formats::quote;
using torch::optim::Optimizer;

class ToLoad {
 public:
  ToLoad(const ShardedModule& model, const Optimizer& optimizer, const StateDict& given)
      : optimizer_(optimizer),
        model_(model),
        states_(given.at("state").dict()),
        layouts_(given.find("flat_layouts")),
        targets_(optim_targets(model, optimizer)) {
    for (const StateValue& group : list_at(given, "param_groups")) groups_.push_back(&group.dict());
    if (layouts_ != nullptr) {
      // Flat tensors pass unchanged, each as one parameter.
      for (auto& group : targets_) {
        for (OptimTarget& target : group) {
          if (target.flat != nullptr) target.pieces = {{{target.name}, nullptr}};
        }
      }
    }
  }

  StateDict run() {
    read_groups();
    StateDict states;
    StateList groups;
    std::int64_t id = 0;
    for (std::size_t g = 0; g < targets_.size(); ++g) {
      StateDict group = options_for(g);
      StateList ids;
      for (const OptimTarget& target : targets_[g]) {
        StateDict values = local_state(target);
        if (!values.empty()) states.set(id, std::move(values));
        ids.emplace_back(id++);
      }
      group.set("params", std::move(ids));
      groups.emplace_back(std::move(group));
    }
    for (const auto& [key, _] : states_.entries()) {
      if (known_.count(text_of(key)) == 0) keys_.unexpected.push_back(text_of(key));
    }
    problems_.add_keys(keys_, "the optimizer");
    problems_.check("the optimizer's state dict does not fit");
    return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
  }

 private:
  void read_groups() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const StateValue& name : list_at(*groups_[g], "params", cat(" of group ", g))) {
        FSDP_CHECK(name.as_string() != nullptr, "group ", g,
                   " holds numbers of parameters, expected names: see rekey_optim_state_dict");
        group_of_.emplace(*name.as_string(), g);
      }
    }
  }

  // Returns the options of the state dict's group that has the group's parameters.
  StateDict options_for(std::size_t number) {
    std::set<std::size_t> from;
    std::string others;
    for (const OptimTarget& target : targets_[number]) {
      for (const OptimPiece& piece : target.pieces) {
        const auto found = group_of_.find(key_of(piece, group_of_));
        if (found == group_of_.end()) {
          keys_.missing.push_back(piece.name());
        } else if (from.insert(found->second).second) {
          others +=
              cat(others.empty() ? "" : ", ", quote(piece.name()), " of group ", found->second);
        }
      }
    }
    if (from.size() > 1)
      problems_.add(
          cat("group ", number, " of the optimizer holds parameters of several groups: ", others));
    if (from.empty())
      return schema_of(optimizer_).options_of(optimizer_.param_groups()[number].options());
    return *groups_[*from.begin()];
  }

  // Returns the name of the piece that is in `keys`; the first name if none is.
  template <typename Keys>
  static std::string key_of(const OptimPiece& piece, const Keys& keys) {
    const auto found = std::find_if(piece.names.begin(), piece.names.end(), [&](const auto& name) {
      return keys.find(name) != keys.end();
    });
    return found == piece.names.end() ? piece.name() : *found;
  }

  const StateDict* entry_of(const OptimPiece& piece) {
    known_.insert(piece.names.begin(), piece.names.end());
    const StateValue* found = nullptr;
    for (const std::string& name : piece.names) {
      if (found == nullptr) found = states_.find(name);
    }
    if (found == nullptr) return nullptr;
    if (found->as_dict() == nullptr)
      problems_.add(cat(quote(piece.name()), ": expected a dict, found ", found->kind_name()));
    return found->as_dict();
  }

  StateDict local_state(const OptimTarget& target) {
    if (layouts_ != nullptr && target.flat != nullptr && !same_layout(target)) return {};
    StateDict result;
    std::string first;  // the parameter of the flat tensor whose step the others must have
    std::int64_t step = 0;
    for (const OptimPiece& piece : target.pieces) {
      const StateDict* const entry = entry_of(piece);
      if (entry == nullptr) continue;
      for (const auto& [key, value] : entry->entries()) {
        const std::string name = text_of(key);
        const std::string what = piece.name() + ": " + name;
        if (value.is_none()) continue;
        if (name != "step") {
          add_tensor(result, target, piece, name, value);
          continue;
        }
        const std::int64_t found = step_of(value, what);
        if (first.empty()) {
          first = piece.name();
          step = found;
          result.set("step", step_tensor(step));
        } else if (found != step) {
          problems_.add(cat(quote(piece.name()), " is at step ", found, " and ", quote(first),
                            " at step ", step, ", but both lie in ", quote(target.name),
                            ": set use_orig_params"));
        }
      }
    }
    return result;
  }

  void add_tensor(StateDict& result, const OptimTarget& target, const OptimPiece& piece,
                  const std::string& name, const StateValue& value) {
    const std::string what = piece.name() + ": " + name;
    at::Tensor rows;
    if (piece.parameter == nullptr) {
      rows = whole_in(value, what, target.tensor.sizes(), problems_);
    } else {
      rows = rows_in(value, what, piece.parameter->layout, piece.parameter->unit->sharding->rank(),
                     problems_);
      // Copies the rows, so that the rest of the whole tensor is freed.
      if (rows.defined() && value.as_tensor() != nullptr) rows = rows.clone();
    }
    if (!rows.defined()) return;
    if (target.flat == nullptr || piece.parameter == nullptr) {
      result.set(name, rows);
      return;
    }
    StateValue& flat = result[name];
    if (flat.is_none()) flat = fresh(target, name);
    target.view_of(piece, *flat.as_tensor()).copy_(rows);
  }

  // Returns the values of the padding, and of parameters in a flat tensor without such a state: the
  // optimizer's initial values, or zeros.
  at::Tensor fresh(const OptimTarget& target, const std::string& name) const {
    const OptimizerSchema& schema = schema_of(optimizer_);
    for (const auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& tensor : group.params()) {
        if (!tensor.is_same(target.tensor)) continue;
        const auto initial = schema.initial_state(tensor, group.options());
        if (initial == nullptr) break;
        for (const auto& [initial_name, value] : schema.state_of(*initial).tensors) {
          if (initial_name == name) return value;
        }
      }
    }
    return at::zeros_like(target.tensor);
  }

  std::int64_t step_of(const StateValue& value, const std::string& what) {
    try {
      return step_in(value);
    } catch (const c10::Error& error) {
      problems_.add(what + ": " + error.what_without_backtrace());
      return 0;
    }
  }

  bool same_layout(const OptimTarget& target) {
    const std::string problem =
        layout_problem(layouts_->dict().find(target.name), *target.flat, model_);
    if (problem.empty()) return true;
    problems_.add(cat(quote(target.name), problem,
                      ": state of LOCAL_STATE_DICT fits only the same module, units and number "
                      "of ranks"));
    known_.insert(target.name);
    return false;
  }

  const Optimizer& optimizer_;
  const ShardedModule& model_;
  const StateDict& states_;
  const StateValue* const layouts_;  // of flat tensors, if the state dict is a local one
  std::vector<std::vector<OptimTarget>> targets_;
  std::vector<const StateDict*> groups_;
  std::unordered_map<std::string, std::size_t> group_of_;  // by name of the parameter
  std::unordered_set<std::string> known_;
  LoadReport keys_;
  LoadProblems problems_;
};

}  // namespace

StateDict optim_state_dict_to_load(const ShardedModule& model, Optimizer& optimizer,
                                   const StateDict& optim_state_dict, bool load_directly) {
  const OwnWork own;
  StateDict result = ToLoad(model, optimizer, optim_state_dict).run();
  if (load_directly) load_optimizer_state_dict(optimizer, result);
  return result;
}

StateDict shard_full_optim_state_dict(const StateDict& full_optim_state_dict,
                                      const ShardedModule& model, Optimizer& optimizer) {
  return optim_state_dict_to_load(model, optimizer, full_optim_state_dict);
}

StateDict flatten_sharded_optim_state_dict(const StateDict& sharded_optim_state_dict,
                                           const ShardedModule& model, Optimizer& optimizer) {
  return optim_state_dict_to_load(model, optimizer, sharded_optim_state_dict);
}

}  // namespace fsdp
