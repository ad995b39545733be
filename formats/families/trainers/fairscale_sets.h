// SPDX-License-Identifier: Apache-2.0
// Finds the files of a folder that are shards of one model saved by FairScale's FSDP.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/families/trainers/per_rank.h"

namespace fsdp::formats::fairscale {

// The files of one model: with metadata beside the weights, or in files of their own.
struct ShardSet {
  RankFiles weights;
  std::optional<RankFiles> metadata;
};

// Returns the sets of the folder; `others`, if given, receives the first file of each set of ranks
// that holds no shard.
std::vector<ShardSet> shard_sets(const std::filesystem::path& folder,
                                 std::vector<std::string>* others);

}  // namespace fsdp::formats::fairscale
