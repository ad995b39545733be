// SPDX-License-Identifier: Apache-2.0
// Reads what export wrote again, and compares it with the model that it was made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/common.h"
#include "tools/map_choice.h"
#include "tools/named_model.h"

namespace fsdp::cli {

struct ExportCheck {
  std::uint64_t tensors = 0;  // compared
  std::uint64_t bytes = 0;    // of the folder
  // Whether the map was undone: else, since it computes or has no way back, the folder was compared
  // with what the map makes.
  bool undone = true;
  std::vector<std::string> left_out;  // tensors of the model that the folder does not have
};

// `folder`: what was written.  `model`: what named_model returned, of `planned` content after
// casts, whose tensors are those of `source`. Each tensor of the folder has to have the bits that
// the model has, cast where the export casts. Throws: kMismatch naming the first tensor and element
// that differ, what reading throws.
ExportCheck check_export(const std::filesystem::path& folder, const NamedModel& model,
                         const formats::Checkpoint& source, const formats::Value& planned,
                         const MapChoice& choice, const CommonOptions& common);

}  // namespace fsdp::cli
