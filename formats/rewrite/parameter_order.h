// SPDX-License-Identifier: Apache-2.0
// Which parameter an optimizer's id means: the order of a model's parameters, and how ids fit it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/rewrite/optimizer_state.h"

namespace fsdp::formats {

struct ModelParameter {
  std::string name;
  std::optional<std::vector<std::int64_t>> shape;  // where it is known
};

// The parameters of a model in the order of model.parameters(), as far as a checkpoint tells.
struct ParameterOrder {
  std::string origin;   // where it comes from, for messages: "names.txt", "the model in full.pt"
  bool certain = true;  // else the parameters are these, but their order may be another
  // Ids are positions here, whatever the groups: the order was given for them.
  bool for_ids = false;
  std::vector<ModelParameter> parameters;
  std::vector<ModelParameter> tied;  // further names of parameters
};

// The parameters among the tensors of a model's state dict: without integers and booleans and
// without the buffers of normalization layers, which are no parameters, and without the further
// names of tied ones.
// `certain`: the state dict may have the model's own order.  It has not where a module's names do
// not stand together, a bias stands before its weight, or layer 10 before layer 2: then it was
// sorted, or put together from several ranks.
ParameterOrder order_of_model(const Value& model, std::string origin, bool certain);

// The names of an optimizer's ids.
//
// Where groups have `param_names`, those count.  Else, where ids are those of the model's
// parameters (they do not run on from group to group, as Lightning's do not), id i is parameter i.
// Else every group has its parameters in the order of the model, and what each id is has to follow
// from the shapes of what is kept of it.  Shapes are checked in any case where they are known: each
// tensor that is kept has the parameter's shape or one element, or, in rows and columns of factored
// moments, the shape less one dimension.
// Throws: kRekeyAmbiguous naming two candidates; kShape; kKey where there are fewer parameters
// than ids.
std::map<std::string, std::string> names_of_ids(const OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order);

// The ids of an optimizer's names: positions in `order`, which a user gave, or counted on from
// group to group.
// `model`: the one in the same checkpoint, for the shapes and to tell whether the order of a
// group's list is the model's: PyTorch's rekey_optim_state_dict leaves lists of names sorted.
// `ordered`: the lists of names are in the order in which they were saved.
// Throws: kRekeyAmbiguous, kShape, kKey for a name that `order` lacks.
std::map<std::string, std::string> ids_of_names(OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order,
                                                const std::optional<ParameterOrder>& model,
                                                bool ordered);

// Throws kShape where what is kept of a parameter does not fit its shape, kKey where the model has
// no parameter of that name.  `names`: of the optimizer's keys.
void check_shapes(const OptimizerState& optimizer, const std::map<std::string, std::string>& names,
                  const ParameterOrder& model);

}  // namespace fsdp::formats
