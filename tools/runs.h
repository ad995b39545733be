// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: those below a folder that is not a checkpoint itself.
#pragma once

#include <string>
#include <vector>

#include "formats/families/runs/steps.h"
#include "tools/common.h"

namespace fsdp::cli {

// Returns the steps with the newest first.  Without a number, a later one of `steps` counts as
// newer.
std::vector<formats::Step> newest_first(std::vector<formats::Step> steps);

// Returns the steps of `path` and `more`: each path itself, or, for a folder of a run, those of the
// run.  Empty if `path` is the only one and is not such a folder.
// Throws: what formats::look_through throws.
std::vector<formats::Step> listed_steps(const std::string& path,
                                        const std::vector<std::string>& more);

// Returns a sentence about checkpoints that the next older step of the same series holds and this
// one lacks; empty if there are none.
std::string lacking(const formats::Step& step, const std::vector<formats::Step>& steps);

// Tells people of checkpoints inside the folder that reading it did not look at.
void note_unread(const std::string& path, const formats::Checkpoint& checkpoint,
                 const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
