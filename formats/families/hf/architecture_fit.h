// SPDX-License-Identifier: Apache-2.0
// Which names of a checkpoint are those of a class, up to a front that all of them have.
#pragma once

#include <string>

#include "formats/families/hf/architecture.h"
#include "formats/families/hf/model_content.h"

namespace fsdp::formats::hf {

struct ArchitectureFit {
  std::string strip;             // the front that names lose, "model."; may be empty
  std::string add;               // the front that they get
  bool early = false;            // .gamma and .beta of early models become .weight and .bias
  ModelDifferences differences;  // with these names

  bool same() const { return strip.empty() && add.empty() && !early; }
  std::string renamed(const std::string& name) const;
};

// Returns the fronts with which `tensors` differ least from the class: those that all names have
// are tried without them, and names without any with the class's own; all of them also with the
// words of early models.
ArchitectureFit fit_to(const Architecture& architecture, const NamedShapes& tensors);

}  // namespace fsdp::formats::hf
