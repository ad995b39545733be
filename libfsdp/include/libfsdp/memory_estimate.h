// SPDX-License-Identifier: Apache-2.0
// Estimates the memory of sharded training on each rank, before any rank runs: from shapes and
// options only, so the module may be on the meta device.
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
  // true for NCCL; Gloo ranks exchange their blocks and add them afterwards.
  bool adds_while_scattering = false;
};

struct UnitEstimate {
  std::string name;              // "" for the root
  std::int64_t numel = 0;        // of its parameters
  std::int64_t local_bytes = 0;  // a rank's shards
  std::int64_t full_bytes = 0;   // while gathered
};

// In bytes, for the rank that has the most.  Not included: activations, and temporary memory of
// operators, which depend on the model.
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
  // Peaks of gathered parameters and gathers in flight, and of staged gradients and reductions in
  // flight.  Both are upper bounds, except for the rounding of buffers: to 1 MiB, and up to a
  // quarter if an old buffer is reused.
  std::int64_t gathered = 0;
  std::int64_t reducing = 0;
  // True if shards, their gradients and state lie in host memory.
  bool offloaded = false;
  std::vector<UnitEstimate> units;  // parents before children

  std::int64_t on_device() const noexcept;
  std::int64_t on_host() const noexcept;
};

// `options`: as given to FullyShardedDataParallel; the process group is ignored.
// Throws: c10::Error if wrapping the module would, as far as shapes and options can tell, and for a
// node size that does not divide the ranks.
MemoryEstimate estimate_memory(const torch::nn::Module& module, const FsdpOptions& options,
                               const TrainingSetup& setup);

// Returns the estimate of every strategy; the hybrid ones only if the setup has nodes.
std::vector<MemoryEstimate> estimate_strategies(const torch::nn::Module& module,
                                                const FsdpOptions& options,
                                                const TrainingSetup& setup);

// Prints one line for each estimate.
void print_memory_table(std::ostream& out, const std::vector<MemoryEstimate>& estimates);

}  // namespace fsdp
