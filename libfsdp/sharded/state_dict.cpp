// SPDX-License-Identifier: Apache-2.0
// ShardedModule::state_dict.
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/outside_step.h"
#include "libfsdp/internal/state/state_entries.h"
#include "libfsdp/internal/units/gather_rows.h"
#include "libfsdp/internal/units/own_work.h"

namespace fsdp {
using namespace internal;
namespace {

bool offloads(const AnyStateDictConfig& config) {
  return std::visit([](const StateDictConfig& any) { return any.offload_to_cpu; }, config);
}

at::Tensor placed(const at::Tensor& tensor, bool offload) {
  return offload ? tensor.cpu() : tensor;
}

StateDict full(const ShardedModule& model, const FullStateDictConfig& config) {
  const std::vector<Unit*> units = model.units();
  const bool kept = !config.rank0_only || is_first_rank(*units.front());
  StateDict result;
  // Creates the entries in the order of the module first; units then fill their own, one by one.
  for (const StateEntry& entry : state_entries(model)) {
    if (!kept) break;
    if (entry.parameter != nullptr) {
      result.set(entry.name, StateValue());
    } else {
      result.set(entry.name, placed(entry.whole.to(entry.built_dtype, /*non_blocking=*/false,
                                                   /*copy=*/true),
                                    config.offload_to_cpu));
    }
  }
  for (const Unit* unit : units) {
    for (const FlatGroup& group : unit->groups) {
      const at::Tensor blocks =
          gather_blocks(*unit, group.local, "all-gather of the state of '" + unit->name + "'");
      for (const Parameter* parameter : group.parameters) {
        if (!kept && parameter->placed.placements.empty()) continue;
        at::Tensor whole =
            gather_placed(*parameter, joined(blocks, parameter->layout, parameter->offset),
                          "all-gather of the state of '" + parameter->name() + "'");
        if (!kept) continue;
        whole = placed(whole, config.offload_to_cpu);
        for (const std::string& name : model.names_of(*parameter)) result.at(name) = whole;
      }
    }
  }
  return result;
}

StateDict sharded(const ShardedModule& model, bool offload) {
  StateDict result;
  for (const StateEntry& entry : state_entries(model)) {
    if (entry.parameter == nullptr) {
      result.set(entry.name, placed(entry.whole.to(entry.built_dtype), offload));
    } else {
      result.set(entry.name, sharded_tensor(*entry.parameter,
                                            placed(entry.parameter->shard.detach(), offload)));
    }
  }
  return result;
}

StateDict local(const ShardedModule& model, bool offload) {
  StateDict result;
  for (const StateEntry& entry : flat_state_entries(model)) {
    if (entry.flat == nullptr) {
      result.set(entry.name, placed(entry.whole, offload));
    } else {
      result.set(entry.name, placed(entry.flat->local.detach(), offload));
      result.set(layout_key(entry.name), layout_text(*entry.flat, model));
    }
  }
  return result;
}

}  // namespace

StateDict ShardedModule::state_dict() const {
  const OutsideStep outside(engine(), "state_dict");
  const OwnWork own;
  const AnyStateDictConfig& config = state_dict_settings_.state_dict_config;
  switch (state_dict_settings_.state_dict_type) {
    case StateDictType::kFull:
      return full(*this, std::get<FullStateDictConfig>(config));
    case StateDictType::kSharded:
      return sharded(*this, offloads(config));
    case StateDictType::kLocal:
      return local(*this, offloads(config));
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace fsdp
