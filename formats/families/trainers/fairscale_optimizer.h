// SPDX-License-Identifier: Apache-2.0
// Maps the numbers of a rank's torch.optim optimizer to the parameters that FairScale's FSDP made.
// Source: gather_full_optim_state_dict and fsdp_optim_utils.py of FairScale 0.4.13, which accept
// one parameter group, numbered in the order of the units.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/trainers/fairscale_metadata.h"

namespace fsdp::formats::fairscale {

// Returns whether `value` is the state dict of an optimizer: `state`, and `param_groups` with
// `params`.
bool is_optimizer(const Value& value);

// Returns why the optimizer's numbers do not map to `count` parameters one by one: several groups,
// other numbers.  Empty if they do.  Requires: is_optimizer.
std::string why_not_joined(const Value& optimizer, std::size_t count);

// Returns the state of each number below `count`; nullptr if there is none.
// Requires: why_not_joined is empty.  Lifetime: that of `optimizer`.
std::vector<const Value*> states_of(const Value& optimizer, std::size_t count);

// Returns the optimizer's number of each backing parameter: Module.parameters() follows the order
// of the state dict.
std::vector<std::size_t> numbers_in_order(const Metadata& metadata, const Value& weights);

// Returns the names of all original parameters, in the order of the metadata, as a group's
// `params`.
Value names_of(const Metadata& metadata);

}  // namespace fsdp::formats::fairscale
