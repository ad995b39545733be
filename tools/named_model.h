// SPDX-License-Identifier: Apache-2.0
// The model of a checkpoint under the names that from_pretrained takes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/changes/map/mapping.h"
#include "formats/families/hf/companions.h"
#include "tools/conversion.h"
#include "tools/map_choice.h"

namespace fsdp::cli {

struct ModelRequest {
  std::string model;  // its key; empty: the only one, or the one that fits the configuration
  std::string map;    // a built-in map, a file of rules, or "none"; empty: by names
  MapChoice choice;
  bool average = false;     // the averages of its weights
  bool incomplete = false;  // tensors may be missing
  bool dry_run = false;
};

struct NamedModel {
  Changed result;
  // What it was made of: the model in the checkpoint that was given, under the names that the map
  // took, and the map.
  const formats::Checkpoint* source = nullptr;
  formats::Value before;
  std::string map;
  std::vector<formats::map::MapStep> steps;
  // With the adapter that it held; or nullptr.
  std::shared_ptr<const formats::Checkpoint> merged = nullptr;
};

// Returns the tensors of the model, with the adapter that the checkpoint at `path` holds merged
// (see merged_held_adapter).  Which model it is, which front its names lose and which map they need
// is compared with the class that the configuration names; where there are no data of it, the names
// alone decide, and the report says so.
// Throws: kKey for missing and unexpected names, kShape for other shapes, kUnsupported and kUsage
// if there are several choices; what maps and merged_held_adapter throw.
NamedModel named_model(const formats::Checkpoint& source, const formats::Value& content,
                       const std::string& path, formats::hf::Companions& companions,
                       const ModelRequest& request, ReportExtras& extras);

}  // namespace fsdp::cli
