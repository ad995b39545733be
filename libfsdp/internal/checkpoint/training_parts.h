// SPDX-License-Identifier: Apache-2.0
// A training state as what is saved of it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "libfsdp/checkpoint.h"

namespace fsdp {

struct TrainingParts {
  StateDict parts;  // "model", "optimizer_0", ...: sharded
  StateDict meta;   // `extra`, with what Lightning asks for
};
// No communication.  Tensors are the training's own where they are on the CPU, or are to stay where
// they are.
// Throws: c10::Error where there is no model, and as state_dict and optim_state_dict do.
TrainingParts training_parts(const TrainingState& state);

// In which order an optimizer's ids count the parameters of a group: as the optimizer lists them;
// but flat parameters stand for those of an unsharded module, whose optimizer has them in its
// order.
class ParameterPlaces {
 public:
  // `state`: the model's state dict, in the module's order.
  ParameterPlaces(const ShardedModule& model, const StateDict& state);
  void sort(std::vector<std::string>& names) const;

 private:
  bool sorts_;
  std::unordered_map<std::string, std::size_t> places_;
};

// The ranks of all copies of the model.
// Throws: c10::Error where there is no model.
std::shared_ptr<ProcessGroup> group_of(const TrainingState& state);

}  // namespace fsdp
