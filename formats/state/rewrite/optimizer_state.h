// SPDX-License-Identifier: Apache-2.0
// Reads the state of an optimizer in its saved form, and writes it in another one.
//
// Forms: by id ({"state": {0: ...}, "param_groups": [{"params": [0, ...], ...}]}), by name (the
// same with names), and flattened ("state.<name>.exp_avg", "param_groups.<name>.lr" for every
// parameter).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// The first part of every key in the flattened form.
inline constexpr std::string_view kFlatState = "state.";
inline constexpr std::string_view kFlatGroups = "param_groups.";

enum class OptimizerForm { kIds, kNames, kFlattened };
// "by id", "by name", "flattened".
std::string_view form_name(OptimizerForm form);

// Returns whether the option of a group lists its parameters: "params" or "param_names".
bool lists_parameters(const Value& option);

// Returns the value behind a placeholder, or the value itself.
using ReadValue = std::function<Value(const Value&)>;

struct OptimizerState {
  struct Group {
    std::vector<std::string> params;       // ids in decimal, or names
    std::vector<std::string> param_names;  // from PyTorch 2.6 on, one per parameter; or none
    std::vector<Value::Entry> options;     // the other options; empty if `source` holds them
    Value source;                          // the group as it was found; None in the flattened form
  };
  OptimizerForm form = OptimizerForm::kIds;
  std::vector<Group> groups;
  // The state of each parameter, by its id or name, in the order found.
  std::vector<std::pair<std::string, Value>> state;
  Value source;  // the part of the state dict that holds the optimizer

  std::size_t parameter_count() const;
};

// Reads the optimizer in a part of a state dict.  A flattened optimizer gets one group for each set
// of equal options, in order of appearance; groups that had equal options become one.  `same` tells
// whether two options are equal.  An optimizer without parameters is by name.
// Throws: kKey naming the contradiction: parameters listed twice, ids among names, state of a
// parameter that no group lists; kType.
OptimizerState read_optimizer(const Value& part, bool flattened, const ReadValue& read,
                              const std::function<bool(const Value&, const Value&)>& same);

// Returns the state under other keys; `keys` maps the old key of every parameter to its new one.
// Containers, options and orders stay; ids become integers.  Flattened states become grouped.
Value write_optimizer(const OptimizerState& optimizer, OptimizerForm form,
                      const std::map<std::string, std::string>& keys);

}  // namespace fsdp::formats
