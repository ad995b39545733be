// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/fully_shard.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/sharding.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp {
using namespace internal;
namespace {

// Keeps sharded modules that have no handle and were not used yet: the handles of inner modules end
// before the module around them is sharded.
class Unheld {
 public:
  static Unheld& of_process() {
    static Unheld result;
    return result;
  }
  void add(std::unique_ptr<ShardedModule> module) {
    const std::lock_guard lock(mutex_);
    modules_.push_back(std::move(module));
  }
  // Destroys modules that a sharded module around them has taken in, and those whose module is
  // gone.
  void drop() {
    std::vector<std::unique_ptr<ShardedModule>> dropped;
    const std::lock_guard lock(mutex_);
    for (auto& module : modules_) {
      if (module->is_taken_in() || module->module().use_count() == 1)
        dropped.push_back(std::move(module));
    }
    std::erase(modules_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ShardedModule>> modules_;
};

// Ends the life of a last handle: keeps a module that was not used yet, destroys any other.
void release(ShardedModule* module) {
  std::unique_ptr<ShardedModule> owned(module);
  if (!owned->is_taken_in() && !engine_of(*owned).has_run())
    Unheld::of_process().add(std::move(owned));
}

FsdpOptions common_options(const FullyShardOptions& options) {
  FsdpOptions result;
  result.process_group = options.process_group;
  result.replicate_group = options.replicate_group;
  result.device_mesh = options.mesh;
  result.node_size = options.node_size;
  result.sharding_strategy = options.sharding_strategy;
  if (options.mesh && options.mesh->ndim() == 2 &&
      options.sharding_strategy == ShardingStrategy::kFullShard)
    result.sharding_strategy = ShardingStrategy::kHybridShard;
  result.cpu_offload = options.offload_policy;
  result.mixed_precision.param_dtype = options.mp_policy.param_dtype;
  result.mixed_precision.reduce_dtype = options.mp_policy.reduce_dtype;
  result.mixed_precision.cast_forward_inputs = options.mp_policy.cast_forward_inputs;
  result.ignored_states = options.ignored_params;
  result.param_init_fn = options.param_init_fn;
  result.device_id = options.device_id;
  result.sync_module_states = options.sync_module_states;
  result.backward_prefetch = options.backward_prefetch;
  result.forward_prefetch = options.forward_prefetch;
  result.limit_all_gathers = options.limit_all_gathers;
  result.bucket_bytes = options.bucket_bytes;
  return result;
}

}  // namespace

std::shared_ptr<ShardedModule> fully_shard(std::shared_ptr<torch::nn::Module> module,
                                           const FullyShardOptions& given) {
  Unheld::of_process().drop();
  FullyShardOptions options = given;
  leave_out_option(options);
  PerModule per_module;
  if (options.reshard_after_forward) {
    if (const int* const ranks = std::get_if<int>(&*options.reshard_after_forward))
      per_module.kept_over = *ranks;
    per_module.reshards_after_forward =
        per_module.kept_over || std::get<bool>(*options.reshard_after_forward);
  }
  per_module.output_dtype = options.mp_policy.output_dtype;
  return {new ShardedModule(std::move(module), common_options(options), per_module), release};
}

}  // namespace fsdp
