// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/options.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
namespace {

// In the order of the enumeration.
constexpr std::array kStrategyNames{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                    "_HYBRID_SHARD_ZERO2"};

}  // namespace

const char* name_of(ShardingStrategy strategy) noexcept {
  const auto number = static_cast<std::size_t>(strategy);
  return number < kStrategyNames.size() ? kStrategyNames[number] : "?";
}

ShardingStrategy sharding_strategy_of(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string known;
  for (std::size_t i = 0; i < kStrategyNames.size(); ++i) {
    if (upper == kStrategyNames[i]) return static_cast<ShardingStrategy>(i);
    known += (known.empty() ? "" : ", ") + std::string(kStrategyNames[i]);
  }
  FSDP_CHECK(false, "expected one of the sharding strategies ", known, ", found '", name, "'");
}

}  // namespace fsdp
