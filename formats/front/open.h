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

}  // namespace fsdp::formats
