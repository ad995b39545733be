// SPDX-License-Identifier: Apache-2.0
// Compares the step counts in the files of a checkpoint.  A file of another save has the same
// names, shapes and sizes as the file it replaced, but its optimizer states count other steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

// The largest step count in each file (Index::files), by the part of the counters' keys that names
// the optimizer.
using StepCounts = std::map<std::string, std::map<std::uint32_t, std::int64_t>>;

// Reads the counters of all optimizers.  `readable`: whether the tensor or value of that key may be
// read; others are skipped.  Throws: the errors of reading; kInterrupted.
StepCounts step_counts(const Checkpoint& checkpoint, const std::function<bool()>& cancelled,
                       const std::function<bool(const std::string& key)>& readable);

// Appends a warning kMismatch for each file whose largest step count of an optimizer differs from
// that of most files; the warning names both.  Counters are the numbers called `step` below a part
// `state`.  Files without counters are skipped.  Reads nothing if one file has all counters.
// Throws: the errors of reading; kInterrupted.
void check_step_counts(const Checkpoint& checkpoint, Findings& findings,
                       const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
