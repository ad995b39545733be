// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer over a sharded module, by the names of the module's parameters, in the
// form PyTorch's optimizers of Python give and take:
//
//   {"state": {"blocks.0.ln1.weight": {"step": 0-d float32, "exp_avg": ..., ...}, ...},
//    "param_groups": [{"params": ["emb.weight", ...], "lr": 0.001, "betas": (0.9, 0.95), ...}]}
//
// What is kept for each element of a parameter has its shape: whole, or this rank's rows.  Options
// of a param group are all those of Python's class, so that PyTorch loads them.
//
// Optimizers: torch::optim::SGD, Adam, AdamW, Adagrad, RMSprop, and fsdp::optim::AdamW; others are
// refused by their type's name.  The optimizer's parameters are those of
// ShardedModule::parameters() in any grouping, or some of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libfsdp/state_dict.h"
#include "libfsdp/state_value.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace fsdp {

class ProcessGroup;
class ShardedModule;

// Collective for kFull; in the form and with the configuration that is set for the module (see
// set_state_dict_type).  kLocal: flat parameters by their names, as they lie on this rank, and
// "flat_layouts", which says of each what lies where; with use_orig_params as kSharded.
// Parameters without state yet have no entry under "state".
// Throws: c10::Error for optimizers that are none of the above, or hold parameters that are not the
// module's; kFull: where ranks have state of different parameters.
StateDict optim_state_dict(const ShardedModule& model, const torch::optim::Optimizer& optimizer);

// From what optim_state_dict gave (at any world size, for kFull) to what this optimizer on this
// rank takes, see load_optimizer_state_dict; `load_directly` gives it to it.  Whole tensors are cut
// to this rank's rows; sharded ones have to have this rank's rows already.  Parameters of the
// optimizer without an entry under "state" have none, or what the optimizer begins with where they
// lie in one flat parameter with others that have.  Entries of "param_groups" are matched by the
// names in them, and may be in another order.  Tied parameters go by any of their names.
// Throws: c10::Error naming, all at once, every parameter of the optimizer that "param_groups"
// lacks, every one of "state" that it has in excess, every tensor of another shape, and parameters
// of one flat parameter that are at different steps.
StateDict optim_state_dict_to_load(const ShardedModule& model, torch::optim::Optimizer& optimizer,
                                   const StateDict& optim_state_dict, bool load_directly = false);

// What torch.optim.Optimizer.state_dict() gives in Python: by PARAM_ID, tensors as they are.
// Collective: no.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer);
// ... and load_state_dict() takes.  Tensors are taken over where dtype and device fit, else copied.
// Options that the C++ class has not are left out.
// Throws: c10::Error for another number of groups or of parameters in one, for tensors that are of
// another shape, missing, or none of the class, and where a group wants what C++ cannot do
// (maximize); nothing is changed then.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state_dict);

// PyTorch 1.11's family.  The first two: as optim_state_dict of kFull and kSharded, whatever is
// set; with rank0_only other ranks get an empty dict.
StateDict full_optim_state_dict(const ShardedModule& model,
                                const torch::optim::Optimizer& optimizer, bool rank0_only = true);
StateDict sharded_optim_state_dict(const ShardedModule& model,
                                   const torch::optim::Optimizer& optimizer);
// From a full one, which every rank has, to what this optimizer on this rank takes.
StateDict shard_full_optim_state_dict(const StateDict& full_optim_state_dict,
                                      const ShardedModule& model,
                                      torch::optim::Optimizer& optimizer);
// Collective.  The same from a full one that only rank 0 has; that of other ranks is not looked at.
StateDict scatter_full_optim_state_dict(const StateDict& full_optim_state_dict,
                                        const ShardedModule& model,
                                        torch::optim::Optimizer& optimizer);
// From what sharded_optim_state_dict gave.
StateDict flatten_sharded_optim_state_dict(const StateDict& sharded_optim_state_dict,
                                           const ShardedModule& model,
                                           torch::optim::Optimizer& optimizer);

enum class OptimStateKeyType { kParamName, kParamId };
// The same state dict under keys of that type; what has it already is returned as it is.  Parameter
// i is the i-th of `model`'s parameters, or, where an optimizer over it is given, the i-th of its
// groups one after the other.  "params" lists come out sorted.
// Throws: c10::Error where keys of both types are mixed, or a name or an id is not the model's.
StateDict rekey_optim_state_dict(const StateDict& optim_state_dict, OptimStateKeyType key_type,
                                 const torch::nn::Module& model,
                                 const torch::optim::Optimizer* optimizer = nullptr);

}  // namespace fsdp
