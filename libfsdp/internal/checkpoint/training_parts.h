// SPDX-License-Identifier: Apache-2.0
// Splits a training state into the parts that are saved.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "libfsdp/checkpoint.h"

namespace fsdp::internal {

struct TrainingParts {
  StateDict parts;  // "model", "optimizer_0", ...: sharded
  StateDict meta;   // see meta_of
};
// Returns `extra` with the state of the scaler, if there is one, and what Lightning requires.
StateDict meta_of(const TrainingState& state);
// No communication.  Tensors that are on the CPU, or are to stay where they are, are the training's
// own.
// Throws: c10::Error if there is no model, and as state_dict and optim_state_dict do.
TrainingParts training_parts(const TrainingState& state);

// Gives the order in which an optimizer's ids count the parameters of a group: as the optimizer
// lists them.  Flat parameters stand for those of an unsharded module, whose optimizer has them in
// the module's order.
class ParameterPlaces {
 public:
  // `state`: the model's state dict, in the module's order.
  ParameterPlaces(const ShardedModule& model, const StateDict& state);
  void sort(std::vector<std::string>& names) const;

 private:
  bool sorts_;
  std::unordered_map<std::string, std::size_t> places_;
};

// Returns the models: first that of TrainingState::model, without a name.
// Throws: c10::Error if one is null, or a name cannot be one.
std::vector<TrainedModel> models_of(const TrainingState& state);

// Returns the ranks of all copies of the model.
// Throws: c10::Error if there is no model.
std::shared_ptr<ProcessGroup> group_of(const TrainingState& state);

}  // namespace fsdp::internal
