// SPDX-License-Identifier: Apache-2.0
// Finds out whether one side of `diff` is an export of the other, and by which way.
#pragma once

#include <optional>
#include <string>

#include "tools/verbs/comparing/comparison.h"
#include "tools/verbs/comparing/comparison_sides.h"

namespace fsdp::cli {

struct ExportSearch {
  std::optional<ExportWay> way;
  // Of sides that share few names, and have no way: the nearest way, and the first name that does
  // not fit it.
  std::string why;
};

// Looks for a model on each side, fronts of names and a map that make the names of one model those
// of the other.  Looks only where names differ, or where exactly one side has a config.json beside
// its tensors and a dtype differs; not with selected keys or given prefixes.  A guess counts only
// if all names fit and the export holds nothing but the model; a map that the user names may leave
// names that only one side has.  With a way, `sides` hold the tensors of the two models under the
// same names.  Without one, they stay as they are.
// Throws: if the user named a model, a map or its parameters, kUsage for selected keys and for
// several ways, and kKey or what map_content throws if there is none; else the errors of reading.
ExportSearch find_export(const DiffOptions& options, Sides& sides);

}  // namespace fsdp::cli
