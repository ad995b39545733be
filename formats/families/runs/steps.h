// SPDX-License-Identifier: Apache-2.0
// The folder of a run, its steps, and the parts of a step: found by structure, whoever wrote them.
// docs/formats/runs.md.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

// What is saved, kept and removed as a whole: a checkpoint that is one file or one folder, or a
// folder with several inside.
struct Step {
  std::filesystem::path path;
  // Of a folder that is not one checkpoint by itself: the paths below it of those inside, in
  // natural order.
  std::vector<std::string> parts;
  // Names of the checkpoints in the folder, without numbers but those of processes: steps of one
  // run have the same.
  std::set<std::string> shape;
};

// What a folder is for those who look for checkpoints.
struct RunView {
  bool is_step = false;  // then `steps` has it alone
  // In natural order; saves that were interrupted are among them.
  std::vector<Step> steps;
};

// Note [steps and runs]
// A folder that has a layout of its own (layout.h) is a step.  Of any other folder, those inside
// decide that hold a checkpoint somewhere below them:
// - If one of them tells its step by its name ("step_20", "0000400"), or is a run itself, or two of
//   them have names that differ in one number alone ("model-7", "model-8"; not "rank0", "rank1"),
//   the folder is a run: each of them is a step, and those of runs inside.
// - Otherwise it is a step, and they are its parts, if its own name tells a step or differs in one
//   number from that of a folder beside it, or if it holds several and one has a name that only a
//   part has ("optimizer").  In a folder whose name tells a step, equal names with other numbers
//   are parts too ("model_0", "model_1").
// - Otherwise it is a collection, seen as a run in which each of them is a step.
// What holds no checkpoint does not count.  Links are not followed; hidden names are left out.

// Throws: kLimitEntries if there are too many files to look through, or folders too deep; kIo.
RunView look_through(const std::filesystem::path& folder);

// Returns the parts of a path that is a step by its structure alone; empty for what has a layout of
// its own, for files, runs, and paths that do not exist.
// Throws: like look_through.
std::vector<std::string> parts_of_step(const std::filesystem::path& path);

// Returns names for the parts of a step: the last one of each path, without its suffix, where that
// is unique, else the whole path with dots.
std::vector<std::string> part_names(const std::vector<std::string>& paths);

// Returns damage if the parts' names tell that an optimizer is there, and no model.
Findings missing_model(const std::vector<std::string>& paths);

// Returns the paths of a checkpoint's files below the path at which it was opened.
std::vector<std::string> files_below(const std::filesystem::path& path,
                                     const Checkpoint& checkpoint);

// Returns the paths below a folder of checkpoints in it that none of `files` belongs to, which are
// paths below it too: those that opening the folder as one checkpoint did not read.
// Empty for a file, and for a folder of a store that cannot list.
// Throws: like look_through.
std::vector<std::string> unread_checkpoints(const std::filesystem::path& folder,
                                            const std::vector<std::string>& files);

}  // namespace fsdp::formats
