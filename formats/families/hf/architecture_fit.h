// SPDX-License-Identifier: Apache-2.0
// Matches the names of a checkpoint to those of a class, up to a front that all names share.
#pragma once

#include <string>
#include <vector>

#include "formats/families/hf/architecture.h"
#include "formats/families/hf/model_content.h"

namespace fsdp::formats::hf {

// Returns the fronts that all names share, up to a dot: "", "module.", "module.model.", ...; at
// most eight.
std::vector<std::string> common_fronts(const NamedShapes& tensors);

struct ArchitectureFit {
  std::string strip;             // the front that is removed from names, "model."; may be empty
  std::string add;               // the front that is added
  bool early = false;            // .gamma and .beta of early models become .weight and .bias
  ModelDifferences differences;  // after renaming

  bool same() const { return strip.empty() && add.empty() && !early; }
  std::string renamed(const std::string& name) const;
};

// Returns the fit with the fewest differences from the class.  Tries to remove each front that all
// names share, and to add the class's own front; each also with the words of early models.
ArchitectureFit fit_to(const Architecture& architecture, const NamedShapes& tensors);

}  // namespace fsdp::formats::hf
