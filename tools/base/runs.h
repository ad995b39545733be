// SPDX-License-Identifier: Apache-2.0
// Finds the checkpoints of a run: those below a folder that is not a checkpoint itself.
#pragma once

#include <string>
#include <vector>

#include "formats/families/runs/steps.h"
#include "tools/base/common.h"

namespace fsdp::cli {

// Returns the steps, the newest first.  Of steps without a number, a later one in `steps` counts as
// newer.
std::vector<formats::Step> newest_first(std::vector<formats::Step> steps);

// Returns the steps of `path` and `more`: each path itself, or, for a folder of a run, those of the
// run.  Empty if `path` is the only one and not the folder of a run.
// Throws: what formats::look_through throws.
std::vector<formats::Step> listed_steps(const std::string& path,
                                        const std::vector<std::string>& more);

// Returns a sentence about checkpoints that the next older step of the same series has and this
// step lacks; empty if there are none.
std::string lacking(const formats::Step& step, const std::vector<formats::Step>& steps);

// Notes checkpoints inside the folder that were not read.
void note_unread(const std::string& path, const formats::Checkpoint& checkpoint,
                 const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
