// SPDX-License-Identifier: Apache-2.0
// Splits and joins the param groups of an optimizer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/select.h"
#include "formats/state/rewrite/optimizer_state.h"

namespace fsdp::formats {

struct GroupEdit {
  // Names of parameters that get groups of their own: if some parameters of a group match, they
  // move to a new group with the same options.  New groups follow the others.
  std::vector<Glob> split;
  // Positions of groups that become one, in the place of the first, with parameters in this order.
  std::vector<std::size_t> join;
  std::optional<std::size_t> keep;  // the group whose options count where they differ
  // New options, as name and text (see value_like), of the groups whose parameters all match, new
  // ones included, or of the joined group.
  std::vector<std::pair<std::string, std::string>> options;
  std::optional<std::string> optimizer;  // its key; not given: all that have such groups
};

struct EditedGroup {
  std::vector<std::size_t> from;        // positions of the groups that its parameters come from
  std::vector<std::string> parameters;  // names, or ids if names were not needed
};

struct OptionChange {
  std::size_t group = 0;  // its new position
  std::string option;
  Value was;
  Value now;
};

struct EditedOptimizer {
  std::string key;  // "optimizer_states.0"; empty if it is the whole checkpoint
  OptimizerForm form = OptimizerForm::kIds;
  std::size_t old_groups = 0;
  std::vector<EditedGroup> groups;
  std::vector<OptionChange> changes;
};

struct GroupsEdited {
  Value content;
  std::vector<EditedOptimizer> optimizers;  // those that changed
};

// Splits or joins groups.  Requires: one of `split` and `join` is not empty.
// Throws: kKey if there is no optimizer, or its parameters are ids that nothing names; kNotFound if
// a glob matches no parameter, a group lacks an option, or a group or an optimizer does not exist;
// kUsage if nothing would change, or several optimizers may be meant; kMismatch naming the options
// in which joined groups differ; kType as for set_values; kUnsupported for an option that is a
// tensor and would belong to two groups; the errors of read_optimizer.
GroupsEdited edit_groups(const Checkpoint& checkpoint, const Value& content, const GroupEdit& edit);

}  // namespace fsdp::formats
