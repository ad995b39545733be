// SPDX-License-Identifier: Apache-2.0
// Finds the parameter for an optimizer's id from the order of a model's parameters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/state/rewrite/optimizer_state.h"

namespace fsdp::formats {

struct ModelParameter {
  std::string name;
  std::optional<std::vector<std::int64_t>> shape;  // if known
};

// The parameters of a model in the order of model.parameters(), as far as it is known.
struct ParameterOrder {
  std::string origin;   // its source, for messages: "names.txt", "the model in full.pt"
  bool certain = true;  // false: the parameters are complete, but their order may differ
  // The user gave this order for the ids: an id is a position in it, regardless of groups.
  bool for_ids = false;
  std::vector<ModelParameter> parameters;
  std::vector<ModelParameter> tied;  // further names of parameters
};

// Returns whether the names may be in the order of a module's state dict: the names of a module are
// adjacent, a weight comes before its bias, layer 2 before layer 10.
bool in_module_order(const std::vector<std::string>& names);

// Returns the parameters among the tensors of a model's state dict.  Leaves out integers, booleans,
// the buffers of normalization layers, and the further names of tied parameters.
// `certain`: the state dict may have the model's own order.  The order is lost (sorted, or combined
// from several ranks) if a module's names are not adjacent, a bias comes before its weight, or
// layer 10 before layer 2.
ParameterOrder order_of_model(const Value& model, std::string origin, bool certain);

// Returns the names for an optimizer's ids.
//
// The first rule that applies decides.  If groups have `param_names`, those are the names.  If ids
// are those of the model's parameters (not consecutive across groups, like Lightning's), id i is
// parameter i.  Otherwise every group has its parameters in the order of the model, and the shapes
// of its state must decide each id.  Known shapes are always checked: each state tensor has the
// parameter's shape, or one element, or, for rows and columns of factored moments, the shape less
// one dimension.
// Throws: kRekeyAmbiguous naming two candidates; kShape; kKey if there are fewer parameters than
// ids.
std::map<std::string, std::string> names_of_ids(const OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order);

// Returns the ids of an optimizer's names: positions in `order`, which a user gave, or consecutive
// across groups.
// `model`: the model in the same checkpoint.  Its shapes are compared, and its order tells whether
// a group's list is in the model's order: PyTorch's rekey_optim_state_dict sorts lists of names.
// `ordered`: the lists of names are in the order in which they were saved.
// Throws: kRekeyAmbiguous, kShape, kKey for a name that `order` lacks.
std::map<std::string, std::string> ids_of_names(OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order,
                                                const std::optional<ParameterOrder>& model,
                                                bool ordered);

// Throws kShape if the state of a parameter does not fit its shape, kKey if the model has no
// parameter of that name.  `names`: the names by the optimizer's keys.
void check_shapes(const OptimizerState& optimizer, const std::map<std::string, std::string>& names,
                  const ParameterOrder& model);

}  // namespace fsdp::formats
