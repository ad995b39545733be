// SPDX-License-Identifier: Apache-2.0
// The state of a torch.optim optimizer over flat parameters, or over views of them, in the files of
// ranks: each rank has the state of the elements that it has of a parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/flat/flat_parameters.h"
#include "formats/families/flat/model_division.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::flat {

// One kind of state ("exp_avg") of a parameter.
struct OptimizerKind {
  std::string name;
  std::map<std::uint32_t, const Value*> values;  // of each file that has it
  // The parts of ranks by file, each of one dimension, if it is cut like the parameter; none: ranks
  // share the value.
  std::map<std::uint32_t, TensorValue> parts;
  bool whole = false;  // the parameter is not cut: each part is the whole
};

struct OptimizerParameter {
  std::string id;  // its key in `state`
  const FlatModel::Member* member = nullptr;
  std::vector<OptimizerKind> kinds;  // none: it has no state
};

struct FlatOptimizer {
  KeyPath place;
  std::vector<OptimizerParameter> parameters;  // in the order of the groups
  std::string unfit;                           // why its parameters are not known; empty: they are
};

// Returns the optimizers whose states are cut like the flat parameters of `models`: those of
// parameters by number, with state of one dimension.  `roots`: the object of each file, by its
// number; all have the same optimizers.
// Lifetime: roots and models outlive the result.
// Throws: kMetaType if files differ in their optimizers.
std::vector<FlatOptimizer> flat_optimizers(const std::map<std::uint32_t, const Value*>& roots,
                                           const std::vector<FlatModel>& models);

// A parameter that gets a part of the state of a flat one, or all of the state of a view.
struct StateTarget {
  std::string name;                      // of the parameter; its id if it is not divided
  std::optional<std::size_t> flat = {};  // nothing: it is not cut
  std::int64_t begin = 0;                // in the flat parameter
  std::int64_t numel = 0;
  std::vector<std::int64_t> shape = {};
  std::vector<std::size_t> memory_order = {};
  bool undivided = false;
};

// Returns what gets the state of an optimizer's parameter.
std::vector<StateTarget> state_targets(const OptimizerParameter& parameter, const FlatModel& model,
                                       const ModelDivision& division);

// Returns the names of the optimizer's parameters [first, first + count) as the `params` of a
// group; `said`, what the group has, if one of them is not divided.
Value names_in_group(const FlatOptimizer& optimizer, std::size_t first, std::size_t count,
                     const Value& said, const FlatModel& model, const ModelDivision& division);

}  // namespace fsdp::formats::flat
