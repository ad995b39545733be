// SPDX-License-Identifier: Apache-2.0
// Decides which checkpoints of a run may be removed.
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

// The verdict on a member.
struct PruneVerdict {
  const RunMember* member = nullptr;
  bool of_series = false;  // in the series of the newest sound checkpoint
  bool sound = false;      // was examined, and stays
  bool removed = false;
  bool in_the_way = false;  // would be removed, except for the reason below
  std::string reason;       // why it stays
};

// Note [which checkpoints go]
// A name decides only where it is unambiguous.  A checkpoint is removed if all of this holds:
// - at least `keep` sound checkpoints of its series are newer: those that were found stay, and so
//   does everything newer than the last of them, sound or not, since it may still be written;
// - it belongs to their series (formats/families/runs/step_names.h);
// - its name tells its step for certain, and that step is smaller than the last one kept;
// - no symbolic link of the run leads to it ("latest -> step-400");
// - it holds only files of checkpoints, and no other step.

// Judges every member.  `kept`: the paths of the sound checkpoints that stay, the newest first.
// `whole_folders`: other members of a checkpoint's folder are removed with it.
// Throws: kIo if the target of a link or a member is unknown.
// Requires: each of `kept` has a certain step.  Lifetime: `members` outlive the result.
std::vector<PruneVerdict> prune_verdicts(const std::string& run,
                                         const std::vector<RunMember>& members,
                                         const std::vector<std::string>& kept, bool whole_folders);

}  // namespace fsdp::cli
