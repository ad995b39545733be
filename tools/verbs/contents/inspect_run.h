// SPDX-License-Identifier: Apache-2.0
// `inspect` for several checkpoints, or for a run's folder: one line each.
#pragma once

#include <vector>

#include "formats/families/runs/steps.h"
#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {

// Lists the checkpoints with step, size, tensors and format; reads only metadata.  A checkpoint
// that cannot be opened gets an error on its line; the others are still listed.
// Returns 0; 2 if a checkpoint could not be opened.
int inspect_run(const InspectOptions& options, const std::vector<formats::Step>& steps,
                const Streams& streams);

}  // namespace fsdp::cli
