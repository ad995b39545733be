// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/training_parts.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/grad_scaler.h"
#include "libfsdp/internal/checkpoint/lightning_meta.h"
#include "libfsdp/internal/checkpoint/scaler_state.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp::internal {

ParameterPlaces::ParameterPlaces(const ShardedModule& model, const StateDict& state)
    : sorts_(model.has_flat_parameters()) {
  for (const auto& [key, _] : state.entries()) places_.emplace(text_of(key), places_.size());
}

void ParameterPlaces::sort(std::vector<std::string>& names) const {
  if (!sorts_) return;
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return places_.at(a) < places_.at(b);
  });
}

std::shared_ptr<ProcessGroup> group_of(const TrainingState& state) {
  FSDP_CHECK(state.model != nullptr, "expected a model in TrainingState::model, found none");
  return state.group ? state.group : state.model->options().process_group;
}

TrainingParts training_parts(const TrainingState& state) {
  FSDP_CHECK(state.model != nullptr, "expected a model in TrainingState::model, found none");
  ShardedOptimStateDictConfig in_place;
  in_place.offload_to_cpu = false;
  const StateDictTypeScope scope(*state.model, StateDictType::kSharded, ShardedStateDictConfig{},
                                 in_place);
  TrainingParts result;
  result.parts.set("model", state.model->state_dict());
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    result.parts.set("optimizer_" + std::to_string(i),
                     optim_state_dict(*state.model, *state.optimizers[i]));
  }
  result.meta = meta_of(state);
  return result;
}

StateDict meta_of(const TrainingState& state) {
  StateDict meta = state.extra;
  if (state.grad_scaler != nullptr && state.grad_scaler->is_enabled())
    meta.set("FSDPPrecision", scaler_dict(state.grad_scaler->state()));
  add_lightning_meta(meta);
  return meta;
}

}  // namespace fsdp::internal
