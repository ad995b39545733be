// SPDX-License-Identifier: Apache-2.0
// Compares a model's tensors with its configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/hf/architecture.h"
#include "formats/families/hf/architecture_fit.h"
#include "formats/families/hf/companions.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

// The word for --config that turns the comparison off.
inline constexpr const char* kNoConfig = "none";

// Returns the companions that --config names: none for `none`; for an empty `config`, those found
// near the checkpoint.  Throws: what open_companions throws.
formats::hf::Companions companions_for(const std::string& config, const std::string& checkpoint);

// Returns the model_type of config.json; empty: unknown.
std::string model_type_of(const formats::hf::Companions& companions);

// The class that a configuration names.
class ConfiguredModel {
 public:
  // Lifetime: `companions` outlives this object.
  explicit ConfiguredModel(const formats::hf::Companions& companions);

  // Returns the class; nothing if there are no data of it: `unknown` then says why.
  const std::optional<formats::hf::Architecture>& architecture() const { return architecture_; }
  const std::string& unknown() const { return unknown_; }

  // Returns the tensors under the names that `fit` gives, and reports the changes.
  formats::Value renamed(const formats::Value& tensors, const formats::hf::ArchitectureFit& fit,
                         ReportExtras& extras) const;

  // Compares the names and shapes of a model's tensors with the class.  Without data of the class,
  // compares its layers with each other, and its embedding with the configuration.  Reports what
  // was compared.  `path`: the checkpoint, for messages.  `incomplete`: tensors may be missing.
  // Throws: kKey for missing and unexpected names, kShape for other shapes.
  void require(const std::string& path, const formats::Value& tensors, bool incomplete,
               ReportExtras& extras) const;
  // As require, but compares nothing if there are no data of the class.
  void require_known(const std::string& path, const formats::Value& tensors, bool incomplete,
                     ReportExtras& extras) const;

 private:
  void compare_alone(const std::string& path, const formats::Value& tensors, bool incomplete,
                     ReportExtras& extras) const;
  [[noreturn]] void refuse_incomplete(const std::string& path,
                                      const std::vector<std::string>& missing) const;
  std::string what() const;

  const formats::hf::Companions& companions_;
  std::optional<formats::hf::Architecture> architecture_;
  std::string unknown_;
};

// Compares a checkpoint's content before and after a change with the class of its configuration,
// which may have changed too.  A model that matched the class before must match it afterwards;
// other content is not compared.  Reports which was the case.
// Throws: kShape, kKey with the first difference.
void require_still(const std::string& path, const formats::Value& before,
                   const formats::hf::Companions& config_before, const formats::Value& after,
                   const formats::hf::Companions& config_after, ReportExtras& extras);

}  // namespace fsdp::cli
