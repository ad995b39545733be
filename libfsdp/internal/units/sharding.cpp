// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/sharding.h"

#include <cstddef>
#include <numeric>
#include <vector>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

int node_size(const FsdpOptions& options) {
  if (options.node_size) return *options.node_size;
  const auto environment = rank_environment();
  FSDP_CHECK(environment && environment->local_known,
             "a hybrid sharding strategy shards inside a node, but no launcher says how many ranks "
             "a node has: set node_size, or give process_group and replicate_group");
  return environment->local_world_size;
}

// Returns the run of `size` consecutive ranks of the group that this rank is in.
std::shared_ptr<ProcessGroup> run_of(const std::shared_ptr<ProcessGroup>& group, int size) {
  if (size == group->size()) return group;
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), group->rank() / size * size);
  return group->subgroup(ranks);
}

}  // namespace

void take_groups_of_mesh(FsdpOptions& options) {
  if (!options.device_mesh) return;
  const DeviceMesh& mesh = *options.device_mesh;
  FSDP_CHECK(!options.process_group && !options.replicate_group, "a mesh (", mesh.text(),
             ") and groups are both given: give one of them");
  const std::size_t dims = is_hybrid(options.sharding_strategy) ? 2 : 1;
  FSDP_CHECK(mesh.ndim() == dims, "sharding strategy ", name_of(options.sharding_strategy),
             " takes ", dims, dims == 1 ? " dimension" : " dimensions", " of a mesh, found (",
             mesh.text(), "): choose by mesh[name] or mesh.select(names)");
  options.process_group = mesh.group(dims - 1);
  if (dims == 2) options.replicate_group = mesh.group(0);
}

Mesh mesh_of(const FsdpOptions& options) {
  const auto& all = options.process_group;
  const bool hybrid = is_hybrid(options.sharding_strategy);
  FSDP_CHECK(hybrid || !options.replicate_group,
             "replicate_group is given, but the sharding strategy is not a hybrid one");
  if (options.replicate_group)
    return {all, options.replicate_group->size() > 1 ? options.replicate_group : nullptr};
  if (options.sharding_strategy == ShardingStrategy::kNoShard) {
    if (all->size() == 1) return {all, nullptr};
    return {all->subgroup({all->rank()}), all};
  }
  if (!hybrid) return {all, nullptr};
  const int ranks = node_size(options);
  FSDP_CHECK(ranks >= 1 && all->size() % ranks == 0,
             "a hybrid sharding strategy needs whole nodes: ", all->size(),
             " ranks do not fill nodes of ", ranks);
  std::vector<int> across;
  for (int rank = all->rank() % ranks; rank < all->size(); rank += ranks) across.push_back(rank);
  auto shard = run_of(all, ranks);
  return {shard, across.size() > 1 ? all->subgroup(across) : nullptr};
}

std::shared_ptr<ProcessGroup> neighbours(const std::shared_ptr<ProcessGroup>& group, int size) {
  FSDP_CHECK(size > 0 && group->size() % size == 0, "reshard_after_forward is ", size,
             ", which does not divide the ", group->size(),
             " ranks over which the module is sharded");
  return run_of(group, size);
}

Sharding sharding_of(const FsdpOptions& options) {
  Sharding result;
  result.device_mesh = options.device_mesh;
  result.strategy = options.sharding_strategy;
  result.reshards_after_forward = options.sharding_strategy == ShardingStrategy::kFullShard ||
                                  options.sharding_strategy == ShardingStrategy::kHybridShard;
  result.is_offloaded = options.cpu_offload.offload_params;
  result.flat = !options.use_orig_params;
  result.keeps_low_precision_grads = options.mixed_precision.keep_low_precision_grads;
  result.param_dtype = options.mixed_precision.param_dtype;
  result.casts_inputs = options.mixed_precision.cast_forward_inputs;
  return result;
}

}  // namespace fsdp::internal
