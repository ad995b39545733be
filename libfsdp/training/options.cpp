// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/options.h"

#include <algorithm>
#include <cctype>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {

const char* name_of(ShardingStrategy strategy) noexcept {
  switch (strategy) {
    case ShardingStrategy::kFullShard:
      return "FULL_SHARD";
    case ShardingStrategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case ShardingStrategy::kNoShard:
      return "NO_SHARD";
    case ShardingStrategy::kHybridShard:
      return "HYBRID_SHARD";
    case ShardingStrategy::kHybridShardZero2:
      return "_HYBRID_SHARD_ZERO2";
  }
  return "?";
}

ShardingStrategy sharding_strategy_of(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string known;
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
        ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    if (upper == name_of(strategy)) return strategy;
    known += (known.empty() ? "" : ", ") + std::string(name_of(strategy));
  }
  FSDP_CHECK(false, "expected one of the sharding strategies ", known, ", found '", name, "'");
}

}  // namespace fsdp
