// SPDX-License-Identifier: Apache-2.0
// Saving of training states; loading is in checkpoint_training_load.cpp.
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/checkpoint/training_parts.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

// Keys parameters by the numbers that torch.optim.Optimizer gives them: numbering continues from
// group to group, in the order of `places` within each.
StateDict by_id(const StateDict& named, const ParameterPlaces& places) {
  if (named.empty()) return {};  // not rank 0
  std::unordered_map<std::string, std::int64_t> ids;
  StateList groups;
  for (const StateValue& group : *named.at("param_groups").as_list()) {
    StateDict options = group.dict();
    std::vector<std::string> names;
    for (const StateValue& name : *options.at("params").as_list())
      names.push_back(*name.as_string());
    places.sort(names);
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
    StateDict weights = trained.model->state_dict();
    const ParameterPlaces places(*trained.model, weights);
    parts.set("state_dict", std::move(weights));
    StateList optimizers;
    for (const auto* each : trained.optimizers)
      optimizers.emplace_back(by_id(optim_state_dict(*trained.model, *each), places));
    parts.set("optimizer_states", std::move(optimizers));
    if (!trained.name.empty()) whole.set(trained.name, std::move(further));
  }
  save_file(file, whole, group, options);
}

}  // namespace fsdp
