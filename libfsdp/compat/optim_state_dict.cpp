// SPDX-License-Identifier: Apache-2.0
// State of optimizers over sharded modules, by the names of the module's parameters.
#include "libfsdp/optim_state_dict.h"

#include <sstream>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "libfsdp/agree.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/state/optim_targets.h"
#include "libfsdp/internal/state/optimizer_schema.h"
#include "libfsdp/internal/state/state_entries.h"
#include "libfsdp/internal/units/gather_rows.h"

namespace fsdp {
using namespace internal;
namespace {

using torch::optim::Optimizer;

struct Form {
  StateDictType type = StateDictType::kFull;
  bool offload_to_cpu = true;
  bool rank0_only = false;
};

Form form_of(const StateDictSettings& settings) {
  Form form;
  form.type = settings.state_dict_type;
  const AnyOptimStateDictConfig& config = settings.optim_state_dict_config;
  form.offload_to_cpu =
      std::visit([](const OptimStateDictConfig& any) { return any.offload_to_cpu; }, config);
  if (const auto* full = std::get_if<FullOptimStateDictConfig>(&config))
    form.rank0_only = full->rank0_only;
  return form;
}

class Build {
 public:
  Build(const ShardedModule& model, const Optimizer& optimizer, const Form& form)
      : model_(model),
        optimizer_(optimizer),
        schema_(schema_of(optimizer)),
        form_(form),
        kept_(!form.rank0_only || is_first_rank(*model.units().front())) {}

  StateDict run() {
    const auto targets = optim_targets(model_, optimizer_);
    if (form_.type == StateDictType::kFull) check_alike(targets);
    StateList groups;
    for (std::size_t g = 0; g < targets.size(); ++g) {
      StateList names;
      for (const OptimTarget& target : targets[g]) {
        if (flat(target)) {
          add_flat(target);
          names.emplace_back(target.name);
          continue;
        }
        for (const OptimPiece& piece : target.pieces) {
          add(target, piece);
          names.emplace_back(piece.name());
        }
      }
      StateDict group = schema_.options_of(optimizer_.param_groups()[g].options());
      group.set("params", std::move(names));
      groups.emplace_back(std::move(group));
    }
    if (!kept_) return {};
    StateDict result{{"state", std::move(states_)}, {"param_groups", std::move(groups)}};
    if (!layouts_.empty()) result.set("flat_layouts", std::move(layouts_));
    return result;
  }

 private:
  bool flat(const OptimTarget& target) const {
    return form_.type == StateDictType::kLocal && target.flat != nullptr;
  }

  // Ranks gather in one order, so all of them must have the same state to gather.
  void check_alike(const std::vector<std::vector<OptimTarget>>& targets) const {
    std::vector<std::string> lines;
    for (const auto& group : targets) {
      for (const OptimTarget& target : group) {
        const ParamState state = state_of(schema_, optimizer_, target.tensor);
        std::ostringstream line;
        line << "state of '" << target.name << "': ";
        if (state.step) line << "step " << *state.step;
        for (const auto& item : state.tensors) line << ' ' << item.first;
        lines.push_back(line.str());
      }
    }
    require_same(model_.options().process_group, "the optimizers", lines);
  }

  at::Tensor placed(const at::Tensor& tensor) const {
    return form_.offload_to_cpu ? tensor.detach().cpu() : tensor.detach();
  }

  void add_flat(const OptimTarget& target) {
    layouts_.set(target.name, layout_text(*target.flat, model_));
    const ParamState state = state_of(schema_, optimizer_, target.tensor);
    if (state.empty()) return;
    states_.set(target.name, values_of(state, [&](const auto&, const at::Tensor& tensor) {
                  return placed(tensor);
                }));
  }

  void add(const OptimTarget& target, const OptimPiece& piece) {
    const ParamState state = state_of(schema_, optimizer_, target.tensor);
    if (state.empty()) return;
    StateDict values = values_of(state, [&](const std::string& name, const at::Tensor& tensor) {
      return value_of(target, piece, name, tensor);
    });
    if (kept_) states_.set(piece.name(), std::move(values));
  }

  StateValue value_of(const OptimTarget& target, const OptimPiece& piece, const std::string& name,
                      const at::Tensor& tensor) {
    const bool full = form_.type == StateDictType::kFull;
    if (piece.parameter == nullptr) return placed(full ? tensor.clone() : tensor);
    const at::Tensor rows = target.view_of(piece, tensor);
    if (!full) return sharded_tensor(*piece.parameter, placed(rows));
    const at::Tensor whole =
        gather_rows(*piece.parameter, rows, "all-gather of " + name + " of '" + piece.name() + "'");
    return kept_ ? StateValue(placed(whole)) : StateValue();
  }

  const ShardedModule& model_;
  const Optimizer& optimizer_;
  const OptimizerSchema& schema_;
  const Form form_;
  const bool kept_;  // this rank wants whole tensors
  StateDict states_;
  StateDict layouts_;  // of flat tensors
};

}  // namespace

StateDict optim_state_dict(const ShardedModule& model, const Optimizer& optimizer) {
  const OwnWork own;
  return Build(model, optimizer, form_of(model.state_dict_settings())).run();
}

StateDict full_optim_state_dict(const ShardedModule& model, const Optimizer& optimizer,
                                bool rank0_only) {
  const OwnWork own;
  return Build(model, optimizer, {StateDictType::kFull, true, rank0_only}).run();
}

StateDict sharded_optim_state_dict(const ShardedModule& model, const Optimizer& optimizer) {
  const OwnWork own;
  return Build(model, optimizer, {StateDictType::kSharded, true, false}).run();
}

}  // namespace fsdp
