// SPDX-License-Identifier: Apache-2.0
// Applies a map to the models and optimizers of a checkpoint's content.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/map/parameters.h"
#include "formats/changes/map/rules.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats::map {

struct MapOptions {
  Rules rules;
  GivenParameters given;
  bool drop_optimizer = false;  // leave optimizer states out
};

// A tensor's name, dtype and shape.
struct NamedShape {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

// One use of a rule: tensors of a model that became other tensors together.
struct MapStep {
  std::uint64_t line = 0;  // of the rule
  std::vector<NamedShape> sources;
  std::vector<NamedShape> targets;      // none: dropped
  std::vector<std::string> operations;  // names
};

struct Mapped {
  std::unique_ptr<arrays::ComputedTensors> checkpoint;  // what the content refers to
  Value content;
  std::vector<MapStep> steps;
  std::vector<std::pair<std::string, std::int64_t>> parameters;  // those that were used
  std::uint64_t optimizers = 0;                                  // that were mapped
  std::uint64_t dropped_optimizers = 0;
};

// Every model (see state_parts_of) gets new tensors by the rules.  An optimizer by name, or a
// flattened one, is mapped too: a state of its parameter's shape is moved as the parameter is, and
// a state of one element goes to each of the new parameters.  Casts leave states as they are.
// Everything else stays.  Reads nothing but single elements of states.
//
// `content`: see content.h, without placeholders.  Lifetime: the source outlives the result.
// Throws: kKey if there is no model; kUnsupported for an optimizer by ids, states whose
// parameters are computed, or states of other shapes; kShape, kDtype naming the rule and the
// tensors; what rule_uses and ParameterValues throw.
Mapped map_content(const Checkpoint& source, const Value& content, const MapOptions& options);

}  // namespace fsdp::formats::map
