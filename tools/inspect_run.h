// SPDX-License-Identifier: Apache-2.0
// `inspect` of several checkpoints, or of a run's folder: a line for each.
#pragma once

#include <string>
#include <vector>

#include "tools/inspect.h"

namespace fsdp::cli {

// Lists the checkpoints with step, size, tensors and format; reads metadata alone.  One that cannot
// be opened is an error on its line, and the others are listed all the same.
// Returns 0, or 2 where one could not be opened.
int inspect_run(const InspectOptions& options, const std::vector<std::string>& paths,
                const Streams& streams);

}  // namespace fsdp::cli
