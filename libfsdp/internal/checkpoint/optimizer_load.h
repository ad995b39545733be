// SPDX-License-Identifier: Apache-2.0
// Loads an optimizer's state from a checkpoint, in any form that it was saved in.
#pragma once

#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "libfsdp/internal/checkpoint/load_plan.h"
#include "libfsdp/state_value.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {
class ShardedModule;
}  // namespace fsdp

namespace fsdp::internal {

// Notes what this rank needs of `part`, an optimizer of the checkpoint (by id, by name, or
// flattened).  `key` is the key of the part, for messages; options without a counterpart are added
// to `left_out`.  No communication.  The names of ids come from "param_names"; else, if there are
// as many groups of the same sizes, from the places of the optimizer's parameters; else from the
// order and shapes of the model's parameters (parameter_order.h).
// Returns: the input of optim_state_dict_to_load, complete once the reader has read.
// Throws: what read_optimizer and names_of_ids throw.
StateDict plan_optimizer(LoadPlan& plan, CheckpointReader& reader, const ShardedModule& model,
                         const torch::optim::Optimizer& optimizer, const formats::Value& part,
                         bool flattened, const std::string& key,
                         std::vector<std::string>& left_out);

}  // namespace fsdp::internal
