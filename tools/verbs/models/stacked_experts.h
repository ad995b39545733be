// SPDX-License-Identifier: Apache-2.0
// Adapters for parameters that the model's code stacks (target_parameters of peft), and bases whose
// files hold one tensor for each expert.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/changes/map/rules.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

// A map between the names of a model's code and those of its files.
class ExpertMap {
 public:
  // Finds the built-in map from the names in the content back to those in the model's code, which
  // include `parameters`.  Returns nothing if the content has these names already.
  // `model_type`, `config`: the type in the base's config.json, and its path; empty if there is
  // none.
  // Throws: kMismatch if there is no such map, kUsage if there are several.
  static std::optional<ExpertMap> find(const formats::Checkpoint& base,
                                       const formats::Value& content,
                                       const std::vector<std::string>& parameters,
                                       const std::string& model_type, const std::string& config);

  const std::string& name() const { return name_; }
  // Lifetime: the source outlives the result.
  Changed to_code(const formats::Checkpoint& base, const formats::Value& content) const;
  Changed to_files(const formats::Checkpoint& merged, const formats::Value& content) const;

 private:
  ExpertMap(std::string name, std::string config)
      : name_(std::move(name)), config_(std::move(config)) {}
  Changed mapped(const formats::Checkpoint& source, const formats::Value& content,
                 formats::map::Direction direction) const;

  std::string name_;
  std::string config_;
};

}  // namespace fsdp::cli
