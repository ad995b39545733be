// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer over a sharded module, by the names of the module's parameters, in the
// form of PyTorch's optimizers in Python:
//
//   {"state": {"blocks.0.ln1.weight": {"step": 0-d float32, "exp_avg": ..., ...}, ...},
//    "param_groups": [{"params": ["emb.weight", ...], "lr": 0.001, "betas": (0.9, 0.95), ...}]}
//
// Tensors with the parameter's shape are whole, or this rank's rows.  Param groups have all options
// of Python's class, so that PyTorch loads them.
//
// Optimizers: torch::optim::SGD, Adam, AdamW, Adagrad, RMSprop, and fsdp::optim::AdamW; others are
// rejected with an error that names their type.  The optimizer's parameters are those of
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

// Collective for kFull.  Uses the form and the configuration that is set for the module (see
// set_state_dict_type). kLocal: flat parameters by their names, as they lie on this rank, and
// "flat_layouts", which describes the layout of each; with use_orig_params like kSharded.
// Parameters without state yet have no entry under "state".
// Throws: c10::Error for other optimizers, and for optimizers with parameters that are not the
// module's; with kFull also if ranks have state of different parameters.
StateDict optim_state_dict(const ShardedModule& model, const torch::optim::Optimizer& optimizer);

// Converts the result of optim_state_dict (from any world size, for kFull) to the input of
// load_optimizer_state_dict for this optimizer on this rank; `load_directly` also loads it.  Whole
// tensors are cut to this rank's rows; sharded ones must have this rank's rows already.  Parameters
// of the optimizer without an entry under "state" get none, or the optimizer's initial state if
// they share a flat parameter with others that have one.  Entries of "param_groups" are matched by
// the names in them, and may be in another order.  Tied parameters go by any of their names.
// Throws: c10::Error naming, all at once, every parameter of the optimizer that "param_groups"
// lacks, every unexpected one of "state", every tensor of another shape, and parameters of one flat
// parameter that are at different steps.
StateDict optim_state_dict_to_load(const ShardedModule& model, torch::optim::Optimizer& optimizer,
                                   const StateDict& optim_state_dict, bool load_directly = false);

// Returns what torch.optim.Optimizer.state_dict() returns in Python: by PARAM_ID, tensors as they
// are.  Not collective.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer);
// Counterpart of Python's load_state_dict().  Tensors are taken over if dtype and device fit, else
// copied.  Options that the C++ class lacks are ignored.
// Throws: c10::Error for another number of groups or of parameters in one; for tensors that have
// another shape, are missing, or do not belong to the class; and if a group needs a feature that
// C++ lacks (maximize).  Nothing is changed then.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state_dict);

// PyTorch 1.11's family.  The first two return optim_state_dict() in the forms kFull and kSharded,
// whatever form is set; with rank0_only, ranks other than 0 get an empty dict.
StateDict full_optim_state_dict(const ShardedModule& model,
                                const torch::optim::Optimizer& optimizer, bool rank0_only = true);
StateDict sharded_optim_state_dict(const ShardedModule& model,
                                   const torch::optim::Optimizer& optimizer);
// Converts a full state dict, which every rank has, to this optimizer's input on this rank.
StateDict shard_full_optim_state_dict(const StateDict& full_optim_state_dict,
                                      const ShardedModule& model,
                                      torch::optim::Optimizer& optimizer);
// Collective.  Does the same with a full state dict of rank 0; other ranks' argument is ignored.
StateDict scatter_full_optim_state_dict(const StateDict& full_optim_state_dict,
                                        const ShardedModule& model,
                                        torch::optim::Optimizer& optimizer);
// Converts the result of sharded_optim_state_dict.
StateDict flatten_sharded_optim_state_dict(const StateDict& sharded_optim_state_dict,
                                           const ShardedModule& model,
                                           torch::optim::Optimizer& optimizer);

enum class OptimStateKeyType { kParamName, kParamId };
// Returns the same state dict under keys of that type, unchanged if it has them already.  Parameter
// i is the i-th of `model`'s parameters, or, if an optimizer over it is given, the i-th of its
// groups in sequence.  "params" lists come out sorted.
// Throws: c10::Error if keys of both types are mixed, or a name or an id is not the model's.
StateDict rekey_optim_state_dict(const StateDict& optim_state_dict, OptimStateKeyType key_type,
                                 const torch::nn::Module& model,
                                 const torch::optim::Optimizer* optimizer = nullptr);

}  // namespace fsdp
