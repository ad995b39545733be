// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/training_parts.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/grad_scaler.h"
#include "libfsdp/internal/checkpoint/trainer_entries.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp::internal {

void sort_as_ids(std::vector<std::string>& names, const ShardedModule& model,
                 const StateDict& state) {
  if (!model.has_flat_parameters()) return;
  std::unordered_map<std::string, std::size_t> places;
  for (const auto& [key, _] : state.entries()) places.emplace(text_of(key), places.size());
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return places.at(a) < places.at(b);
  });
}

std::shared_ptr<ProcessGroup> group_of(const TrainingState& state) {
  FSDP_CHECK(state.model != nullptr, "expected a model in TrainingState::model, found none");
  if (state.group) return state.group;
  const auto& mesh = state.model->options().device_mesh;
  return mesh ? mesh->all_ranks() : state.model->options().process_group;
}

std::vector<TrainedModel> models_of(const TrainingState& state) {
  FSDP_CHECK(state.model != nullptr, "expected a model in TrainingState::model, found none");
  const StateDict meta = meta_of(state);
  std::vector<TrainedModel> result{{"", state.model, state.optimizers}};
  for (const TrainedModel& further : state.further) {
    const std::string& name = further.name;
    FSDP_CHECK(further.model != nullptr, "TrainingState::further: '", name, "' has no model");
    const bool is_taken = name == "model" || name == "state_dict" ||
                          name.starts_with("optimizer") || meta.find(name) != nullptr ||
                          std::any_of(result.begin(), result.end(), [&](const TrainedModel& other) {
                            return other.name == name;
                          });
    FSDP_CHECK(!name.empty() && name.find('.') == std::string::npos && !is_taken,
               "TrainingState::further: '", name, "' ",
               is_taken ? "is taken: give the model another name"
                        : "cannot be a name: expected one without dots");
    result.push_back(further);
  }
  return result;
}

TrainingParts training_parts(const TrainingState& state) {
  ShardedOptimStateDictConfig in_place;
  in_place.offload_to_cpu = false;
  TrainingParts result;
  for (const TrainedModel& trained : models_of(state)) {
    const StateDictTypeScope scope(*trained.model, StateDictType::kSharded,
                                   ShardedStateDictConfig{}, in_place);
    StateDict parts;
    parts.set("model", trained.model->state_dict());
    for (std::size_t i = 0; i < trained.optimizers.size(); ++i) {
      parts.set("optimizer_" + std::to_string(i),
                optim_state_dict(*trained.model, *trained.optimizers[i]));
    }
    if (trained.name.empty())
      result.parts = std::move(parts);
    else
      result.parts.set(trained.name, std::move(parts));
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

namespace fsdp {
using namespace internal;
namespace {

// Keys parameters by the numbers that torch.optim.Optimizer gives them: numbering continues from
// group to group.  `weights`: see sort_as_ids().
StateDict by_id(const StateDict& named, const ShardedModule& model, const StateDict& weights) {
  if (named.empty()) return {};  // not rank 0
  std::unordered_map<std::string, std::int64_t> ids;
  StateList groups;
  for (const StateValue& group : *named.at("param_groups").as_list()) {
    StateDict options = group.dict();
    std::vector<std::string> names;
    for (const StateValue& name : *options.at("params").as_list())
      names.push_back(*name.as_string());
    sort_as_ids(names, model, weights);
    StateList numbers;
    for (const std::string& name : names) {
      const auto id = static_cast<std::int64_t>(ids.size());
      ids.emplace(name, id);
      numbers.emplace_back(id);
    }
    options.set("params", std::move(numbers));
    groups.emplace_back(std::move(options));
  }
  StateDict states;
  for (const auto& [name, state] : named.at("state").dict().entries())
    states.set(ids.at(text_of(name)), state);
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

}  // namespace

void save(const std::filesystem::path& folder, const TrainingState& state,
          const SaveOptions& options) {
  const auto group = group_of(state);
  const TrainingParts parts = training_parts(state);
  save_with_meta(folder, parts.parts, parts.meta, group, options);
}

void save_file(const std::filesystem::path& file, const TrainingState& state,
               const SaveOptions& options) {
  const auto group = group_of(state);
  FullStateDictConfig model;
  model.offload_to_cpu = true;
  model.rank0_only = true;
  FullOptimStateDictConfig optimizer;
  optimizer.rank0_only = true;
  StateDict whole = meta_of(state);
  for (const TrainedModel& trained : models_of(state)) {
    const StateDictTypeScope scope(*trained.model, StateDictType::kFull, model, optimizer);
    StateDict further;
    StateDict& parts = trained.name.empty() ? whole : further;
    const StateDict weights = trained.model->state_dict();
    parts.set("state_dict", weights);
    StateList optimizers;
    for (const auto* each : trained.optimizers)
      optimizers.emplace_back(
          by_id(optim_state_dict(*trained.model, *each), *trained.model, weights));
    parts.set("optimizer_states", std::move(optimizers));
    if (!trained.name.empty()) whole.set(trained.name, std::move(further));
  }
  save_file(file, whole, group, options);
}

}  // namespace fsdp
