// SPDX-License-Identifier: Apache-2.0
// Adapters for parameters that the model's code stacks (target_parameters of peft), and bases whose
// files hold one tensor for each expert.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/changes/map/rules.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

// A map between the names of a model's code and those of its files: backwards to the code's,
// forwards to the files'.
struct ExpertMap {
  std::string name;
  std::string config;  // the path of the base's config.json; empty if there is none

  // Lifetime: the source outlives the result.
  Changed mapped(const formats::Checkpoint& source, const formats::Value& content,
                 formats::map::Direction direction) const;
};

// Finds the built-in map from the names in the content back to those in the model's code, which
// include `parameters`.  Returns nothing if the content has these names already.
// `model_type`: that of the base's config.json.
// Throws: kMismatch if there is no such map, kUsage if there are several.
std::optional<ExpertMap> find_expert_map(const formats::Checkpoint& base,
                                         const formats::Value& content,
                                         const std::vector<std::string>& parameters,
                                         const std::string& model_type, const std::string& config);

}  // namespace fsdp::cli
