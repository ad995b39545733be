// SPDX-License-Identifier: Apache-2.0
// What `map` reports: old and new tensors with their shapes.
#pragma once

#include "formats/changes/map/mapping.h"
#include "tools/writing.h"

namespace fsdp::cli {

// `all`: every step is listed for people, not only counted; dropped tensors always are, up to a
// limit.
void add_map_report(const formats::map::Mapped& mapped, const formats::map::MapOptions& options,
                    bool all, ReportExtras& extras);

}  // namespace fsdp::cli
