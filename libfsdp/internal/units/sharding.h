// SPDX-License-Identifier: Apache-2.0
// How a unit is sharded: over which ranks, in which dtypes, and what it keeps between uses.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "libfsdp/options.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

// Returns whether the strategy shards inside a node, with replicas across nodes.
inline bool is_hybrid(ShardingStrategy strategy) noexcept {
  return strategy == ShardingStrategy::kHybridShard ||
         strategy == ShardingStrategy::kHybridShardZero2;
}

// Sets the groups of the options from their mesh, if one is given.
// Throws: c10::Error if groups are given, too, or for a number of dimensions that does not fit the
// strategy.
void take_groups_of_mesh(FsdpOptions& options);

struct Mesh {
  std::shared_ptr<ProcessGroup> shard;      // of size 1: nothing is sharded
  std::shared_ptr<ProcessGroup> replicate;  // null: no replicas
};

// Collective.  Makes the groups that a strategy needs from those of the options.
// Throws: c10::Error if the hybrid strategies cannot tell which ranks share a node, if ranks do not
// fill the nodes, or if a replicate group is given and nothing uses it.
Mesh mesh_of(const FsdpOptions& options);

// What the units of one wrapper share.
struct Sharding {
  Mesh mesh;  // see mesh_of()
  // The dimensions that `mesh` is made of, if FsdpOptions::device_mesh gave them.
  std::optional<DeviceMesh> device_mesh;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  bool reshards_after_forward = true;
  // The ranks, some of the mesh's, that hold a unit together after its forward, until its backward.
  // Null: only the shards stay.
  std::shared_ptr<ProcessGroup> kept_over;
  bool is_offloaded = false;  // shards and gradients are in memory of the host
  bool flat = false;          // the optimizer gets FlatGroup::flat
  bool keeps_low_precision_grads = false;
  std::optional<c10::ScalarType> param_dtype;  // in which units with mixed precision compute
  // Whether operators on parameters get their other inputs in param_dtype: see observer.h.
  bool casts_inputs = false;
  std::optional<c10::ScalarType> output_dtype;  // see MixedPrecisionPolicy

  const ProcessGroup& shard() const noexcept { return *mesh.shard; }
  int rank() const noexcept { return mesh.shard->rank(); }
  int world_size() const noexcept { return mesh.shard->size(); }
};

// Returns the sharding that the options describe, without its mesh.
Sharding sharding_of(const FsdpOptions& options);

// Collective.  Divides the group into runs of `size` consecutive ranks, and returns this rank's
// run.
// Throws: c10::Error if `size` does not divide the size of the group.
std::shared_ptr<ProcessGroup> neighbours(const std::shared_ptr<ProcessGroup>& group, int size);

// What fully_shard() is given beyond FsdpOptions.
struct PerModule {
  std::optional<bool> reshards_after_forward;  // none: as the strategy says
  std::optional<int> kept_over;                // ranks: see Sharding::kept_over
  std::optional<c10::ScalarType> output_dtype;
};

}  // namespace fsdp::internal
