// SPDX-License-Identifier: Apache-2.0
// Divides the parameter groups of an optimizer, and joins them.
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
  // Names of parameters that get groups of their own: from each group of which some match, those
  // move to a new one with the same options.  New groups stand behind the others.
  std::vector<Glob> split;
  // Positions of groups that become one, in the place of the first, with parameters in this order.
  std::vector<std::size_t> join;
  std::optional<std::size_t> keep;  // whose options the joined group has where they differ
  // Options of the groups whose parameters all match, or of the joined one: name and text, as
  // value_like reads it.
  std::vector<std::pair<std::string, std::string>> options;
  std::optional<std::string> optimizer;  // its key; all that have such groups if not given
};

struct EditedGroup {
  std::vector<std::size_t> from;        // positions of the groups that its parameters come from
  std::vector<std::string> parameters;  // names; ids where nothing was asked of names
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

// Requires: one of `split` and `join` is not empty.
// Throws: kKey if there is no optimizer, or its parameters are ids that nothing names; kNotFound
// where a glob matches no parameter, for an option that a group lacks, a group or an optimizer that
// is not there; kUsage if nothing would change, or several optimizers may be meant; kMismatch
// naming the options in which joined groups differ; kType as for set_values; kUnsupported for an
// option that is a tensor and would belong to two groups; what read_optimizer throws.
GroupsEdited edit_groups(const Checkpoint& checkpoint, const Value& content, const GroupEdit& edit);

}  // namespace fsdp::formats
