// SPDX-License-Identifier: Apache-2.0
// The report of `map`: old and new tensors with their shapes.
#pragma once

#include "formats/changes/map/mapping.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

// Adds the report of a map.  `all`: lists every step for users instead of a count; dropped tensors
// are always listed, up to a limit.
void add_map_report(const formats::map::Mapped& mapped, const formats::map::MapOptions& options,
                    bool all, ReportExtras& extras);

}  // namespace fsdp::cli
