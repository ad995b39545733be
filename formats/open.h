// SPDX-License-Identifier: Apache-2.0
// The front door: finds out what a path holds and opens it.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/base/team.h"
#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats {

struct OpenOptions {
  // Names in pickles that count as plain data beside those the formats know, as "module.name".
  std::set<std::string> allowed_globals;
  // The processes that open the same checkpoint together: of a folder of
  // torch.distributed.checkpoint the leader alone reads the metadata, for all.  Null: this one
  // alone.
  Team* team = nullptr;
};

// Detects the layout from content, never from a name alone, and opens the checkpoint: metadata is
// read, data is not. Throws: kNotFound; kUnknownFormat naming near misses one level up and down;
// the errors of the layouts.
std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& path,
                                            const OpenOptions& options = {});

// Finds the checkpoints below the folder of a run, which is not a checkpoint itself: in it and in
// folders inside it, three levels deep, links not followed; saves that were interrupted are among
// them.  In natural order.  Empty for anything else.
// Throws: kLimitEntries if there are too many files to examine; kIo.
std::vector<std::filesystem::path> checkpoints_below(const std::filesystem::path& folder);

// Returns the names of folders inside a folder of safetensors files that are checkpoints of their
// own: opening the folder looks at its files alone.  In natural order.  Empty for anything else.
// Throws: kIo.
std::vector<std::string> folders_apart(const std::filesystem::path& folder);

}  // namespace fsdp::formats
