// SPDX-License-Identifier: Apache-2.0
// Finds the parameter of an optimizer's id, from the order of a model's parameters.
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

// The parameters of a model in the order of model.parameters(), as far as a checkpoint shows it.
struct ParameterOrder {
  std::string origin;   // its source, for messages: "names.txt", "the model in full.pt"
  bool certain = true;  // if false, the parameters are these, but their order may differ
  // Ids are positions in this order, regardless of groups: the user gave it for them.
  bool for_ids = false;
  std::vector<ModelParameter> parameters;
  std::vector<ModelParameter> tied;  // further names of parameters
};

// Returns the parameters among the tensors of a model's state dict: without integers, booleans and
// the buffers of normalization layers, which are not parameters, and without the further names of
// tied ones.
// `certain`: the state dict may have the model's own order.  It does not if a module's names are
// not adjacent, a bias comes before its weight, or layer 10 before layer 2: then it was sorted, or
// combined from several ranks.
ParameterOrder order_of_model(const Value& model, std::string origin, bool certain);

// Returns the names of an optimizer's ids.
//
// If groups have `param_names`, those count.  Otherwise, if ids are those of the model's parameters
// (not consecutive across groups, like Lightning's), id i is parameter i.  Otherwise every group
// has its parameters in the order of the model, and each id must follow from the shapes of its
// state. Known shapes are checked in any case: each state tensor has the parameter's shape or one
// element, or, for rows and columns of factored moments, the shape less one dimension.
// Throws: kRekeyAmbiguous naming two candidates; kShape; kKey if there are fewer parameters than
// ids.
std::map<std::string, std::string> names_of_ids(const OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order);

// Returns the ids of an optimizer's names: positions in `order`, which a user gave, or consecutive
// across groups.
// `model`: the model in the same checkpoint, for the shapes and to tell whether a group's list has
// the model's order: PyTorch's rekey_optim_state_dict leaves lists of names sorted.
// `ordered`: the lists of names are in the order in which they were saved.
// Throws: kRekeyAmbiguous, kShape, kKey for a name that `order` lacks.
std::map<std::string, std::string> ids_of_names(OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order,
                                                const std::optional<ParameterOrder>& model,
                                                bool ordered);

// Throws kShape if the state of a parameter does not fit its shape, kKey if the model has no
// parameter of that name.  `names`: of the optimizer's keys.
void check_shapes(const OptimizerState& optimizer, const std::map<std::string, std::string>& names,
                  const ParameterOrder& model);

}  // namespace fsdp::formats
