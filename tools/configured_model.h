// SPDX-License-Identifier: Apache-2.0
// A model's tensors beside what its configuration says of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/hf/architecture.h"
#include "formats/families/hf/architecture_fit.h"
#include "formats/families/hf/companions.h"
#include "tools/writing.h"

namespace fsdp::cli {

// The word for --config that leaves a model uncompared.
inline constexpr const char* kNoConfig = "none";

// Returns the companions that --config names: none for `none`, and if it is empty those that are
// found near the checkpoint.  Throws: what open_companions throws.
formats::hf::Companions companions_for(const std::string& config, const std::string& checkpoint);

// The class that a configuration names.
class ConfiguredModel {
 public:
  // Lifetime: `companions` live as long.
  explicit ConfiguredModel(const formats::hf::Companions& companions);

  // Nothing if there are no data of it; then `unknown` says why.
  const std::optional<formats::hf::Architecture>& architecture() const { return architecture_; }
  const std::string& unknown() const { return unknown_; }

  // Returns the tensors under the names of a fit, and tells the report what changed.
  formats::Value renamed(const formats::Value& tensors, const formats::hf::ArchitectureFit& fit,
                         ReportExtras& extras) const;

  // Compares a model, its tensors by their names, with the class; where there are no data, with
  // itself: its layers with each other, and its embedding with the configuration.  Tells the report
  // what was compared.  `path`: the checkpoint, for messages.  `incomplete`: tensors may be
  // missing. Throws: kKey for missing and unexpected names, kShape for other shapes.
  void require(const std::string& path, const formats::Value& tensors, bool incomplete,
               ReportExtras& extras) const;
  // As require, but compares nothing where there are no data.
  void require_known(const std::string& path, const formats::Value& tensors, bool incomplete,
                     ReportExtras& extras) const;

 private:
  void compare(const std::string& path, const formats::Value& tensors, bool incomplete,
               ReportExtras& extras) const;
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
// which may have changed with it: what was the model of that class has to be one still.  Other
// content is compared with nothing.  Tells the report which.
// Throws: kShape, kKey with the first difference.
void require_still(const std::string& path, const formats::Value& before,
                   const formats::hf::Companions& config_before, const formats::Value& after,
                   const formats::hf::Companions& config_after, ReportExtras& extras);

}  // namespace fsdp::cli
