// SPDX-License-Identifier: Apache-2.0
// The front door: finds out what a path holds and opens it.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

struct OpenOptions {
  // Python names in pickles, as "module.name", that count as plain data besides those the formats
  // know.
  std::set<std::string> allowed_globals;
  // The processes that open the checkpoint together.  In a folder of torch.distributed.checkpoint,
  // only the leader reads the metadata, for all of them.  Never null.
  Team* team = &this_process();
};

// Detects the layout from content, never from a name alone, and opens the checkpoint: metadata is
// read, data is not. Throws: kNotFound; kUnknownFormat naming near misses one level up and down;
// the errors of the layouts.
std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& path,
                                            const OpenOptions& options = {});

}  // namespace fsdp::formats
