// SPDX-License-Identifier: Apache-2.0
// Compares what the files of a checkpoint count as steps.  A file of another save has the names,
// shapes and sizes of the one that it took the place of; the counters in an optimizer's states
// differ.
#pragma once

#include <functional>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

// Appends a warning kMismatch for each file whose largest counter of an optimizer's steps is not
// that of most files, with both.  Counters are the numbers called `step` below a part `state`; a
// file without one says nothing, and nothing is read where one file has all of them. Throws: what
// reading throws; kInterrupted.
void check_step_counts(const Checkpoint& checkpoint, Findings& findings,
                       const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
