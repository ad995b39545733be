// SPDX-License-Identifier: Apache-2.0
// The model of a checkpoint under the names that from_pretrained expects.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/changes/map/mapping.h"
#include "formats/families/hf/companions.h"
#include "tools/verbs/models/map_choice.h"
#include "tools/verbs/writing/averaging.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

struct ModelRequest {
  std::string model;  // its key; empty: the only one, or the one that fits the configuration
  std::string map;    // a built-in map, a file of rules, or "none"; empty: chosen by names
  MapChoice choice;
  AverageRequest average;   // take the averages of its weights
  bool incomplete = false;  // tensors may be missing
  bool dry_run = false;
};

struct NamedModel {
  Changed result;
  // The source of the result: the checkpoint, its model under the names that the map takes, and the
  // map.
  const formats::Checkpoint* source = nullptr;
  formats::Value before;
  std::string map;
  std::vector<formats::map::MapStep> steps;
  // The checkpoint with its adapter merged; nullptr if it held none.
  std::shared_ptr<const formats::Checkpoint> merged = nullptr;
  // The checkpoint with averages that are computed; nullptr if there are none.
  std::shared_ptr<const formats::Checkpoint> averaged = nullptr;
};

// Returns the tensors of the model, with the adapter that the checkpoint at `path` holds merged
// (see merged_held_adapter).  Chooses the model, the front that its names lose and the map by the
// class that the configuration names.  Without data of the class only the names decide, and the
// report says so.
// Throws: kKey for missing and unexpected names, kShape for other shapes, kUnsupported and kUsage
// if there are several choices; what maps and merged_held_adapter throw.
NamedModel named_model(const formats::Checkpoint& source, const formats::Value& content,
                       const std::string& path, formats::hf::Companions& companions,
                       const ModelRequest& request, ReportExtras& extras);

}  // namespace fsdp::cli
