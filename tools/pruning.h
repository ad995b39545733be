// SPDX-License-Identifier: Apache-2.0
// Decides which checkpoints of a run may go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/bytes/outputs/removal.h"

namespace fsdp::cli {

// A checkpoint of a run, as it was before anything was examined.
struct RunMember {
  std::string path;
  std::string below;  // the path below the run's folder
  formats::RemovableState state;
  std::uint64_t bytes() const;
};

// The verdict on one of them.
struct PruneVerdict {
  const RunMember* member = nullptr;
  bool of_series = false;  // that of the newest sound one
  bool sound = false;      // was examined, and stays
  bool removed = false;
  bool in_the_way = false;  // it would go, but for what the reason says
  std::string reason;       // it stays
};

// Note [which checkpoints go]
// A name decides only where it leaves no doubt.  A checkpoint goes if all of this holds:
// - at least `keep` sound ones of its series are newer: the sound ones that were found stay, and
//   so does everything that is newer than the last of them, sound or not: it may be a save that
//   goes on;
// - it is of their series (formats/families/runs/step_names.h);
// - its name tells its step for certain, and the step is smaller than the last one kept;
// - no symbolic link of the run leads to it ("latest -> step-400");
// - it holds nothing but files of checkpoints, and no other step.

// Judges every member.  `kept`: the sound ones that stay, by their paths, the newest first.
// `whole_folders`: what else lies in a checkpoint's folder goes with it.
// Throws: kIo: it cannot be told where a link or a member leads.
// Requires: each of `kept` has a certain step.  Lifetime: `members` outlive the result.
std::vector<PruneVerdict> prune_verdicts(const std::string& run,
                                         const std::vector<RunMember>& members,
                                         const std::vector<std::string>& kept, bool whole_folders);

}  // namespace fsdp::cli
