// SPDX-License-Identifier: Apache-2.0
// A rank's optimizer of torch.optim over the parameters that FairScale's FSDP made: which of them
// its numbers stand for.
// Source: gather_full_optim_state_dict and fsdp_optim_utils.py of FairScale 0.4.13, which take one
// parameter group, numbered as the units are.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/pickle/value.h"
#include "formats/trainers/fairscale_metadata.h"

namespace fsdp::formats::fairscale {

// Whether `value` is the state dict of an optimizer: `state`, and `param_groups` with `params`.
bool is_optimizer(const Value& value);

// Why its numbers do not stand for `count` parameters one by one: several groups, other numbers.
// Empty where they do.  Requires: is_optimizer.
std::string why_not_joined(const Value& optimizer, std::size_t count);

// The state of each number below `count`; nullptr where there is none.
// Requires: why_not_joined is empty.  Lifetime: that of `optimizer`.
std::vector<const Value*> states_of(const Value& optimizer, std::size_t count);

// The optimizer's number of each backing parameter: Module.parameters() has them in the order of
// the state dict.
std::vector<std::size_t> numbers_in_order(const Metadata& metadata, const Value& weights);

// The names of all parameters as they are trained, in the order of the metadata: a group's
// `params`.
Value names_of(const Metadata& metadata);

}  // namespace fsdp::formats::fairscale
