// SPDX-License-Identifier: Apache-2.0
// Sharding by composition, as PyTorch's fully_shard (FSDP2): modules keep their type, their forward
// and their names, and each call has options of its own.
//
//   fsdp::FullyShardOptions options;
//   options.process_group = group;
//   for (auto& block : *model->blocks) fsdp::fully_shard(block, options);   // inner modules first
//   auto sharded = fsdp::fully_shard(model, options);
//   torch::optim::AdamW optimizer(sharded->parameters(), 1e-3);
//   auto loss = loss_of(model->forward(tokens));
//   loss.backward();
//   sharded->clip_grad_norm_(1.0);
//   optimizer.step();
//
// Note [first touch without a wrapper]: nothing tells when the forward of such a module begins or
// ends.  The first operator that takes a parameter begins the forward, and a backward ends it.
// Without a backward, the units of the last operators stay gathered until state is read or written,
// shards are stepped and used again, or reshard() is called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/options.h"
#include "libfsdp/unit_call.h"

namespace fsdp {

// Only floating-point tensors are cast.  See Note [casts] in libfsdp/internal/engine/observer.h,
// and call().
struct MixedPrecisionPolicy {
  // The dtype of parameters in forward and backward; shards keep the module's original dtype.
  std::optional<c10::ScalarType> param_dtype = {};
  // The dtype of gradients while they are reduced; default: param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = {};
  // The dtype of the module's outputs; default: as forward makes them.  If set, a module that has
  // submodules must be called by call(); otherwise its first operator throws.
  std::optional<c10::ScalarType> output_dtype = {};
  // Cast inputs to param_dtype.
  bool cast_forward_inputs = true;
};

struct FullyShardOptions {
  // Members with names of FsdpOptions are described there.  An inner module may have other groups
  // than the module around it; the groups of the outermost module are the ranks that train.
  std::shared_ptr<ProcessGroup> process_group = {};
  std::shared_ptr<ProcessGroup> replicate_group = {};
  // See FsdpOptions::device_mesh.  With two dimensions, kFullShard means kHybridShard.
  std::optional<DeviceMesh> mesh = {};
  std::optional<int> node_size = {};
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Default: as the strategy says.  A number N: as true, but from forward to backward each N
  // consecutive ranks hold the parameters together, and gather them among themselves.
  std::optional<std::variant<bool, int>> reshard_after_forward = {};
  MixedPrecisionPolicy mp_policy = {};
  CPUOffload offload_policy = {};
  IgnoredStates ignored_params = {};
  std::function<void(torch::nn::Module&)> param_init_fn = {};
  std::optional<c10::Device> device_id = {};
  bool sync_module_states = false;
  // The values of the outermost module apply to the following ones.
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;
  std::int64_t bucket_bytes = 4 << 20;
};

// Collective.  Shards the module in place, as one unit with everything below it that is not sharded
// already.  Modules that inner calls have sharded keep their options.
// Returns: a handle with the functions of FullyShardedDataParallel except forward.  The outermost
// module's handle must be kept as long as the module is used.  Inner handles are needed only for
// their own functions, and belong to the outermost.
// Throws: as ShardedModule; also if an inner module has run a forward already.
std::shared_ptr<ShardedModule> fully_shard(std::shared_ptr<torch::nn::Module> module,
                                           const FullyShardOptions& options);
template <typename Impl>
std::shared_ptr<ShardedModule> fully_shard(const torch::nn::ModuleHolder<Impl>& module,
                                           const FullyShardOptions& options) {
  return fully_shard(std::static_pointer_cast<torch::nn::Module>(module.ptr()), options);
}

// Explains at compile time why a call matches no other overload.
template <typename Module, typename Options>
requires(!std::is_convertible_v<const Options&, FullyShardOptions> ||
         !(std::is_convertible_v<const Module&, std::shared_ptr<torch::nn::Module>> ||
           requires(const Module& module) {
             module.ptr();
           })) std::shared_ptr<ShardedModule> fully_shard(const Module&, const Options&) {
  constexpr bool kOptions = std::is_convertible_v<const Options&, FullyShardOptions>;
  static_assert(kOptions, "fsdp::fully_shard() takes fsdp::FullyShardOptions");
  static_assert(
      !kOptions,
      "fsdp::fully_shard() takes a module's holder or a std::shared_ptr to it, because it "
      "keeps the module");
  return nullptr;
}

}  // namespace fsdp
