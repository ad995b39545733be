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

std::map<std::string, std::string> own_words(const ParityCase& wanted) {
  std::map<std::string, std::string> result;
  for (const std::string& own : wanted.own) {
    const std::size_t sign = own.find('=');
    result[own.substr(0, sign)] = own.substr(sign + 1);
  }
  return result;
}

FullyShardOptions composed_options(const ParityCase& wanted, const std::string& words,
                                   const FsdpOptions& options) {
  ParityCase own;
  own.mixed = words;
  FullyShardOptions result;
  result.process_group = options.process_group;
  result.replicate_group = options.replicate_group;
  result.node_size = options.node_size;
  result.sharding_strategy = options.sharding_strategy;
  if (own.casts("hold")) result.reshard_after_forward = false;
  if (own.casts("keep2")) result.reshard_after_forward = 2;
  if (own.casts("reshard")) result.reshard_after_forward = true;
  result.mp_policy.param_dtype = options.mixed_precision.param_dtype;
  result.mp_policy.reduce_dtype = options.mixed_precision.reduce_dtype;
  if (own.casts("param")) result.mp_policy.param_dtype = at::kBFloat16;
  if (own.casts("reduce32")) result.mp_policy.reduce_dtype = at::kFloat;
  if (own.casts("full")) {
    result.mp_policy.param_dtype = at::kFloat;
    result.mp_policy.reduce_dtype.reset();
  }
  if (own.casts("out")) result.mp_policy.output_dtype = at::kBFloat16;
  result.backward_prefetch = options.backward_prefetch;
  result.forward_prefetch = options.forward_prefetch;
  result.bucket_bytes = wanted.bucket_bytes;
  result.offload_policy = options.cpu_offload;
  result.sync_module_states = options.sync_module_states;
  result.param_init_fn = options.param_init_fn;
  return result;
}

}  // namespace fsdp::test
