// SPDX-License-Identifier: Apache-2.0
// A model of Megatron-Core and the state of its optimizer, by the names of the modules' parameters:
// what its kinds of checkpoints have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::megatron {

struct NamedArray {
  std::string name;
  arrays::Array array;
};

struct ModuleState {
  std::vector<NamedArray> model;
  // The optimizer's states by kind: "exp_avg", "exp_avg_sq"; "param" is the float32 copy of the
  // parameters.
  std::map<std::string, std::vector<NamedArray>> states;
  // The options of the optimizer's param groups; they tell which parameters a group has
  // (groups_of).
  std::vector<std::vector<Value::Entry>> groups;
  std::vector<Value::Entry> others;  // of the top level: iteration, args, ...
  std::uint64_t left_out = 0;        // values that each rank or layer has its own of
};

inline constexpr std::string_view kMasterState = "param";

// Gives every layer and expert tensors of its own in the result.
// `names`: the parameters in the order of modules, for an optimizer in buckets; may be empty.
// Throws: kShape for a state of another shape than its parameter; kKey for a state whose parameter
// is missing, or for one half of a gated linear unit without the other; what read_buckets throws.
ModuleState read_torch_dist(const Checkpoint& source, const Value& content,
                            const std::vector<std::string>& names, arrays::ComputedTensors& made);
// Throws: kKey, kShape, as above.
ModuleState read_fsdp_dtensor(const Checkpoint& source, const Value& content,
                              arrays::ComputedTensors& made);
// Reads the model and the optimizer by names in any content (see state_parts_of).
// Throws: kKey if it holds no model; kUnsupported for several, or an optimizer that does not name
// its parameters.
ModuleState read_state_dict(const Checkpoint& source, const Value& content,
                            arrays::ComputedTensors& made);

// Adds the options of every group below `value`: chained optimizers are members of a dict.
void add_groups(const Value& value, std::vector<std::vector<Value::Entry>>& out, int depth = 0);

// Returns whether the options of a group are those of experts.
bool is_of_experts(const std::vector<Value::Entry>& group);

// Returns the group of each parameter of the model, by the rule that Megatron-Core makes groups by:
// biases and vectors are not decayed, experts have an optimizer of their own.
// Throws: kUnsupported unless exactly one group is for a parameter.
std::vector<std::size_t> groups_of(const ModuleState& state, const std::string& path);

// Returns the model at the top level, beside an optimizer by names; layers are named as Transformer
// Engine names them.
Value state_dict_content(const ModuleState& state, const std::string& path,
                         arrays::ComputedTensors& made);
// Joins experts, and layers where they are alike and not to be kept apart.
// Throws: kKey for an expert that is missing.
Value torch_dist_content(const ModuleState& state, const std::string& path, bool layers_apart,
                         arrays::ComputedTensors& made);
// Separates gate and input of gated linear units.  As in Megatron-FSDP, the model is the float32
// copy of the parameters.
Value fsdp_dtensor_content(const ModuleState& state, const std::string& path,
                           arrays::ComputedTensors& made);

// Joins "…weight_w" and "…weight_v" to "…weight", gate before input, and checks what was read.
// Throws: kKey if there is no model, for one half without the other, and for a state whose
// parameter is missing; kShape for halves, or a state and its parameter, of different shapes.
void complete(ModuleState& state, const std::string& path);

}  // namespace fsdp::formats::megatron
