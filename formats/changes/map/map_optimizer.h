// SPDX-License-Identifier: Apache-2.0
// Moves the state of an optimizer as a map moves the optimizer's parameters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/map/matching.h"
#include "formats/state/content/state_parts.h"

namespace fsdp::formats::map {

// How the tensors of a model were mapped.
struct MappedModel {
  std::vector<RuleUse> uses;                                // with all targets
  std::map<std::string, std::vector<std::int64_t>> shapes;  // of the sources, by name
};

// Applies a rule's operations one after the other.  Throws: what `applied` throws.
std::vector<arrays::Array> apply_rule(const Rule& rule, std::vector<arrays::Array> arrays,
                                      const ParameterValue& parameter);

// Returns the optimizer `state` at `part` with the names and states of the new parameters.  Of tied
// parameters the first has the state.  A parameter that is one in the optimizer and several in the
// model (Rules::fused) is divided first, as the model's code divides it.
// Throws: kUnsupported for ids, for a parameter whose elements are computed, for a state of another
// shape, and for parameters that become one and lie in different groups or have different step
// counts; kKey for a parameter that the model lacks; what read_optimizer and `parameter` throw.
Value map_optimizer_state(const Checkpoint& source, const StatePart& part, const Value& state,
                          const Rules& rules, const MappedModel& model,
                          const ParameterValue& parameter, arrays::ComputedTensors& made);

}  // namespace fsdp::formats::map
