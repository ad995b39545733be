// SPDX-License-Identifier: Apache-2.0
// An optimizer's state out of a checkpoint, in whatever form it was saved.
#pragma once

#include <string>
#include <vector>

#include "formats/pickle/value.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "libfsdp/internal/checkpoint/load_plan.h"
#include "libfsdp/state_value.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

class ShardedModule;

// Notes what of `part`, an optimizer of the checkpoint (by id, by name, or flattened), this rank
// wants.  `key` is that of the part, for messages; options without a counterpart are noted in
// `left_out`.  No communication.
// Ids: what "param_names" says; else, where groups are as many and as large as the optimizer's,
// those of the optimizer's parameters in their places; else what follows from the order of the
// model's parameters and their shapes (parameter_order.h).
// Returns: what optim_state_dict_to_load takes, once the reader has read.
// Throws: what read_optimizer and names_of_ids throw.
StateDict plan_optimizer(LoadPlan& plan, CheckpointReader& reader, const ShardedModule& model,
                         const torch::optim::Optimizer& optimizer, const formats::Value& part,
                         bool flattened, const std::string& key,
                         std::vector<std::string>& left_out);

}  // namespace fsdp
