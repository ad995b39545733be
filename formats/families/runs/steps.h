// SPDX-License-Identifier: Apache-2.0
// The folder of a run, its steps, and the parts of a step, found by the structure of folders and
// names.  See docs/formats/runs.md.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

// A unit that is saved, kept and removed as a whole: a checkpoint that is one file or one folder,
// or a folder with several checkpoints inside.
struct Step {
  std::filesystem::path path;
  // For a folder that is not itself a checkpoint: the paths, below it, of the checkpoints inside,
  // in natural order.
  std::vector<std::string> parts;
  // Names of the checkpoints in the folder, without numbers except ranks; equal for the steps of
  // one run.
  std::set<std::string> shape;
};

// What look_through() finds in a folder.
struct RunView {
  bool is_step = false;  // the folder is one step, the only one in `steps`
  // In natural order, interrupted saves included.
  std::vector<Step> steps;
};

// Note [steps and runs]
// A folder that has a format of its own (formats.h) is a step.  Any other folder is classified by
// its children that hold a checkpoint at any depth:
// - The folder is a run if the name of a child tells a step ("step_20", "0000400"), if a child is
//   itself a run, or if the names of two children differ only in one number ("model-7", "model-8";
//   not "rank0", "rank1").  Each of these children is a step; a child that is a run adds its own
//   steps.
// - Otherwise the folder is a step, and the children are its parts, if its own name tells a step or
//   differs only in one number from that of a folder beside it, or if it holds several checkpoints
//   and one has a name that only a part has ("optimizer").  In a folder whose name tells a step,
//   names that differ only in numbers are parts too ("model_0", "model_1").
// - Otherwise the folder is a collection, seen as a run in which each child is a step.
// Children that hold no checkpoint do not count.  Links are not followed; hidden names are left
// out.

// Throws: kLimitEntries if there are too many files to look through, or folders too deep; kIo.
RunView look_through(const std::filesystem::path& folder);

// Returns the parts of a step that has no layout of its own.  Empty for a path with a layout, a
// file, a run, and a path that does not exist.
// Throws: the errors of look_through.
std::vector<std::string> parts_of_step(const std::filesystem::path& path);

// Returns a name for each part of a step: the last name of its path without the suffix if that is
// unique, else the whole path with dots for slashes.
std::vector<std::string> part_names(const std::vector<std::string>& paths);

// Returns damage if every path is a part name, one names an optimizer, and none names a model.
Findings missing_model(const std::vector<std::string>& paths);

// Returns the paths of a checkpoint's files, relative to the path at which it was opened.
std::vector<std::string> files_below(const std::filesystem::path& path,
                                     const Checkpoint& checkpoint);

// Returns the checkpoints in a folder that were not read when the folder was opened as one
// checkpoint.  `files`: those that were read.  All paths are relative to the folder.
// Empty for a file, and for a folder of a store that cannot list.
// Throws: the errors of look_through.
std::vector<std::string> unread_checkpoints(const std::filesystem::path& folder,
                                            const std::vector<std::string>& files);

}  // namespace fsdp::formats
