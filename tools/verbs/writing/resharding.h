// SPDX-License-Identifier: Apache-2.0
// The common part of shard and reshard: writes a checkpoint as a DCP folder of N ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/verb.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

struct ReshardingOptions {
  WritingOptions writing;
  std::optional<std::int64_t> world_size;
  std::vector<std::string> shard;      // globs over keys: always cut
  std::vector<std::string> replicate;  // never cut
};

// Declares OUT, --world-size, --shard, --replicate.
void declare_resharding(OptionSet& options, ReshardingOptions& resharding);

// Writes the folder.  Returns 0.  Throws: Error; nothing is written then.
int reshard_checkpoint(const std::string& verb, const ReshardingOptions& resharding,
                       const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
