// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/case_options.h"

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "libfsdp/wrap_policy.h"
#include "tests/parity/models.h"

namespace fsdp::test {
namespace {

// The same as in reference.py.
constexpr std::int64_t kSizePolicyNumel = 2000;

ShardingStrategy strategy_of(const std::string& name) {
  static const std::map<std::string, ShardingStrategy> kStrategies = {
      {"FULL_SHARD", ShardingStrategy::kFullShard},
      {"SHARD_GRAD_OP", ShardingStrategy::kShardGradOp},
      {"NO_SHARD", ShardingStrategy::kNoShard},
      {"HYBRID_SHARD", ShardingStrategy::kHybridShard},
      {"_HYBRID_SHARD_ZERO2", ShardingStrategy::kHybridShardZero2},
  };
  return kStrategies.at(name);
}

WrapPolicy policy_of(const std::string& name) {
  if (name == "units") return custom_policy(is_unit);
  if (name == "all") return always_wrap_policy();
  if (name == "size") return size_based_auto_wrap_policy(kSizePolicyNumel);
  TORCH_CHECK(name == "none", "no policy is called ", name);
  return {};
}

BackwardPrefetch prefetch_of(const std::string& name) {
  if (name == "PRE") return BackwardPrefetch::kBackwardPre;
  if (name == "POST") return BackwardPrefetch::kBackwardPost;
  TORCH_CHECK(name == "none", "no prefetching is called ", name);
  return BackwardPrefetch::kNone;
}

// Returns the ranks that share one copy with this one, and those that hold the same part of other
// copies.
std::pair<std::shared_ptr<ProcessGroup>, std::shared_ptr<ProcessGroup>> split(
    const std::shared_ptr<ProcessGroup>& world, int shard) {
  std::vector<int> sharing;
  std::vector<int> copies;
  for (int rank = 0; rank < world->size(); ++rank) {
    if (rank / shard == world->rank() / shard) sharing.push_back(rank);
    if (rank % shard == world->rank() % shard) copies.push_back(rank);
  }
  auto first = world->subgroup(sharing);
  return {std::move(first), world->subgroup(copies)};
}

}  // namespace

FsdpOptions case_options(const ParityCase& wanted, const std::shared_ptr<ProcessGroup>& group) {
  FsdpOptions options;
  options.process_group = group;
  options.sharding_strategy = strategy_of(wanted.strategy);
  if (wanted.shard > 0) {
    std::tie(options.process_group, options.replicate_group) = split(group, wanted.shard);
  }
  options.auto_wrap_policy = policy_of(wanted.wrap);
  options.use_orig_params = wanted.use_orig_params;
  options.backward_prefetch = prefetch_of(wanted.backward_prefetch);
  options.forward_prefetch = wanted.forward_prefetch;
  options.cpu_offload.offload_params = wanted.offload;
  options.sync_module_states = wanted.sync_module_states;
  if (wanted.node_size > 0) options.node_size = wanted.node_size;
  if (wanted.casts("param")) options.mixed_precision.param_dtype = at::kBFloat16;
  if (wanted.casts("reduce")) options.mixed_precision.reduce_dtype = at::kBFloat16;
  if (wanted.casts("reduce32")) options.mixed_precision.reduce_dtype = at::kFloat;
  options.mixed_precision.keep_low_precision_grads = wanted.casts("keep");
  if (wanted.casts("buffer")) options.mixed_precision.buffer_dtype = at::kBFloat16;
  options.bucket_bytes = wanted.bucket_bytes;
  return options;
}

}  // namespace fsdp::test
