// SPDX-License-Identifier: Apache-2.0
// A training state as what is saved of it.
#pragma once

#include <memory>

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

// The ranks of all copies of the model.
// Throws: c10::Error where there is no model.
std::shared_ptr<ProcessGroup> group_of(const TrainingState& state);

}  // namespace fsdp
