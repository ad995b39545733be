// SPDX-License-Identifier: Apache-2.0
// Reads the output of export again, and compares it with its source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/base/common.h"
#include "tools/verbs/models/map_choice.h"
#include "tools/verbs/models/named_model.h"

namespace fsdp::cli {

struct ExportCheck {
  std::uint64_t tensors = 0;  // compared
  std::uint64_t bytes = 0;    // of the folder
  // True: the map was undone and the result compared with the source.  False: the folder was
  // compared with the map's result, since the map computes or has no inverse.
  bool undone = true;
  std::vector<std::string> left_out;  // tensors of the model that the folder lacks
};

// Checks that each tensor in `folder`, the output, has the model's bits, cast where the export
// casts.  `model`: the result of named_model for the content `planned` after casts, whose tensors
// belong to `source`.  Throws: kMismatch naming the first tensor and element that differ; what
// reading throws.
ExportCheck check_export(const std::filesystem::path& folder, const NamedModel& model,
                         const formats::Checkpoint& source, const formats::Value& planned,
                         const MapChoice& choice, const CommonOptions& common);

}  // namespace fsdp::cli
