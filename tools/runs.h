// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: those below a folder that is not a checkpoint itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/common.h"

namespace fsdp::cli {

// Returns the step in a checkpoint's name: the number after "step", else after "iter" or
// "iteration", else after "epoch", else the last number of the name without its suffix. "step-400",
// "epoch=3-step=1200.ckpt", "epoch=3-loss=0.25", "checkpoint_1000".
std::optional<std::uint64_t> step_of(const std::string& path);

// Returns the same if the name leaves no doubt: one of those words is in it, or no other number.
std::optional<std::uint64_t> certain_step_of(const std::string& path);

// Returns the checkpoints with the newest first.  Without a step, a later one of `paths` counts as
// newer.
std::vector<std::string> newest_first(std::vector<std::string> paths);

// Returns the checkpoints of `path` and `more`: each path itself, or, for a folder of a run, the
// checkpoints below it.  Empty if `path` is the only one and is not such a folder.
// Throws: what formats::checkpoints_below throws.
std::vector<std::string> listed_checkpoints(const std::string& path,
                                            const std::vector<std::string>& more);

// Tells people of checkpoints inside the folder `path` that reading it does not look at.
void note_folders_apart(const std::string& path, const CommonOptions& common,
                        const Streams& streams);

}  // namespace fsdp::cli
