// SPDX-License-Identifier: Apache-2.0
// Several checkpoints seen as one, each under a name of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

struct CheckpointPart {
  std::unique_ptr<StoredCheckpoint> checkpoint;
  std::string name = {};    // the top-level key of its content; "": its keys are keys of the whole
  bool unwrap = false;      // its content has one top-level key of its own, which `name` replaces
  bool one_value = false;   // its content is one value; it has a tree, and no tensor is listed
  std::string folder = {};  // of its files within the whole, "" or with a slash at the end
  char separator = 0;       // between the steps of a path that are one step in the part; 0: none
};

// Returns whether every entry is below the top-level key `name`: {"model": ...}.
bool is_below(const Checkpoint& checkpoint, std::string_view name);

// Combines the parts.  `description`: of the whole; its number of ranks is raised to the largest of
// the parts'.
// Throws: kKey if two parts have the same key.
std::unique_ptr<StoredCheckpoint> combine_checkpoints(std::vector<CheckpointPart> parts,
                                                      CheckpointDescription description,
                                                      Findings findings);

}  // namespace fsdp::formats
