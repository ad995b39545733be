// SPDX-License-Identifier: Apache-2.0
// Splits a training state into the parts that are saved.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libfsdp/checkpoint.h"

namespace fsdp::internal {

struct TrainingParts {
  StateDict parts;  // "model", "optimizer_0", ...: sharded
  StateDict meta;   // see meta_of
};
// Returns `extra` with the state of the scaler, if there is one, and what Lightning requires.
StateDict meta_of(const TrainingState& state);
// No communication.  Tensors stay on their devices, and share memory with the training's own: see
// ShardedModule::state_dict.
// Throws: c10::Error if there is no model, and as state_dict and optim_state_dict do.
TrainingParts training_parts(const TrainingState& state);

// Orders the parameters of a group as an optimizer's ids count them: as the optimizer lists them.
// If it lists flat parameters: in the module's order, as for the unsharded module.
// `state`: the model's state dict, in the module's order.
void sort_as_ids(std::vector<std::string>& names, const ShardedModule& model,
                 const StateDict& state);

// Returns the models: first that of TrainingState::model, without a name.
// Throws: c10::Error if a model is null, or a name is empty, has dots, or is taken.
std::vector<TrainedModel> models_of(const TrainingState& state);

// Returns the ranks of all copies of the model.
// Throws: c10::Error if there is no model.
std::shared_ptr<ProcessGroup> group_of(const TrainingState& state);

}  // namespace fsdp::internal
