// SPDX-License-Identifier: Apache-2.0
// What sharded training of a module will take on each rank, before there are ranks: from shapes and
// options alone, so that the module may be on the meta device.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "libfsdp/options.h"

namespace fsdp {

struct TrainingSetup {
  int world_size = 1;
  int node_size = 0;  // ranks of a node, over which the hybrid strategies shard; 0: all ranks
  // Tensors the optimizer keeps for each parameter: 2 for Adam and AdamW, 1 for SGD with momentum.
  int optimizer_tensors = 2;
  // As NCCL does; Gloo ranks exchange their blocks and add them then.
  bool adds_while_scattering = false;
};

struct UnitEstimate {
  std::string name;              // "" for the root
  std::int64_t numel = 0;        // of its parameters
  std::int64_t local_bytes = 0;  // a rank's shards
  std::int64_t full_bytes = 0;   // while gathered
};

// In bytes, of the rank that has the most.  Activations, and what operators need for a moment, are
// the model's and not counted.
struct MemoryEstimate {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  int shard_ranks = 1;
  int replicas = 1;
  // For the whole of training.  `unsharded`: ignored parameters with their gradients and state.
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer_state = 0;
  std::int64_t unsharded = 0;
  std::int64_t buffers = 0;
  // The most at any time: of gathered parameters and gathers under way, and of staged gradients and
  // reductions under way.  Bounds, but for the rounding of buffers: to 1 MiB, and up to a quarter
  // where an old one is used.
  std::int64_t gathered = 0;
  std::int64_t reducing = 0;
  // Shards, their gradients and state lie in memory of the host.
  bool offloaded = false;
  std::vector<UnitEstimate> units;  // parents before children

  std::int64_t on_device() const noexcept;
  std::int64_t on_host() const noexcept;
};

// `options`: as they would be given to FullyShardedDataParallel; the process group is not looked
// at. Throws: c10::Error where wrapping the module would, for what shapes and options can tell, and
// for a node size that does not divide the ranks.
MemoryEstimate estimate_memory(const torch::nn::Module& module, const FsdpOptions& options,
                               const TrainingSetup& setup);

// The estimate of every strategy; the hybrid ones where the setup has nodes.
std::vector<MemoryEstimate> estimate_strategies(const torch::nn::Module& module,
                                                const FsdpOptions& options,
                                                const TrainingSetup& setup);

// A line an estimate.
void print_memory_table(std::ostream& out, const std::vector<MemoryEstimate>& estimates);

}  // namespace fsdp
