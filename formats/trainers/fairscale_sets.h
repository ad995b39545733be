// SPDX-License-Identifier: Apache-2.0
// Which files of a folder are the shards of one model that FairScale's FSDP saved.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/trainers/per_rank.h"

namespace fsdp::formats::fairscale {

// The files of one model: metadata beside the weights, or in files of their own.
struct ShardSet {
  RankFiles weights;
  std::optional<RankFiles> metadata;
};

// The sets of the folder; into `others`, where given, goes the first file of each set of ranks that
// holds no shard.
std::vector<ShardSet> shard_sets(const std::filesystem::path& folder,
                                 std::vector<std::string>* others);

}  // namespace fsdp::formats::fairscale
