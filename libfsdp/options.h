// SPDX-License-Identifier: Apache-2.0
// How a module is sharded.  Names, meanings and defaults are those of PyTorch's
// torch.distributed.fsdp.FullyShardedDataParallel; where this library differs, the member says so.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "libfsdp/process_group.h"
#include "libfsdp/wrap_policy.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

enum class ShardingStrategy {
  // Parameters, gradients and optimizer state are sharded; a unit's parameters are gathered before
  // its forward and again before its backward, and freed after each.
  kFullShard,
  // As kFullShard, but parameters stay gathered from forward to backward.
  kShardGradOp,
  // Everything is replicated; gradients are all-reduced.
  kNoShard,
  // kFullShard inside a node, replicas across nodes.
  kHybridShard,
  // kShardGradOp inside a node, replicas across nodes.
  kHybridShardZero2,
};

// PyTorch's name: "FULL_SHARD", ..., "_HYBRID_SHARD_ZERO2".
const char* name_of(ShardingStrategy strategy) noexcept;

enum class BackwardPrefetch {
  kNone,
  kBackwardPre,   // gather the next unit before the current one's gradients are computed
  kBackwardPost,  // gather the next unit after the current one's gradients were computed
};

// Only floating-point tensors are cast.
struct MixedPrecision {
  // Of parameters in forward and backward; shards stay in the dtype the module was built with.
  std::optional<c10::ScalarType> param_dtype;
  // Of gradients while they are reduced; where not given, param_dtype.
  std::optional<c10::ScalarType> reduce_dtype;
  // Buffers are cast when the module is wrapped and stay so; those of modules that are left alone
  // (see module_classes_to_ignore) are not.
  std::optional<c10::ScalarType> buffer_dtype;
  // Leave gradients in the dtype they were reduced in instead of that of the shards.
  bool keep_low_precision_grads = false;
  // Cast floating-point arguments of the root's forward to param_dtype.  Inner units have no
  // bracket of their own, so that PyTorch's cast_forward_inputs, which is about them, has no
  // counterpart: setting it here has the effect it has on a root there.
  bool cast_forward_inputs = false;
  bool cast_root_forward_inputs = true;
  // Modules for which this is true keep their parameters as they are, each a unit of its own;
  // batch norms where it is empty, as in PyTorch, and only where a wrap policy is given.  Operators
  // on their parameters get inputs in the parameters' dtype, and give results in that of the
  // inputs.
  std::function<bool(const torch::nn::Module&)> module_classes_to_ignore;
};

struct CPUOffload {
  // Shards, gradients and so the optimizer's step stay in (pinned) memory of the CPU.
  bool offload_params = false;
};

// Called once for each unit's gradient, in place of the library's reduction.
// NO_SHARD: `unsharded` holds the unit's flat gradient, to be replaced by the mean over ranks;
// `sharded` is the same tensor.  Otherwise: `unsharded` [W * N], rank-major, and the hook writes
// this rank's mean to `sharded` [N].  Collective over `group`.
using CommHook = std::function<void(const std::shared_ptr<ProcessGroup>& group,
                                    at::Tensor& unsharded, at::Tensor& sharded)>;

// Parameters, or modules: not both, as in PyTorch.
class IgnoredStates {
 public:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  IgnoredStates() = default;
  IgnoredStates(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}
  IgnoredStates(std::initializer_list<at::Tensor> parameters) : parameters_(parameters) {}
  IgnoredStates(Modules modules) : modules_(std::move(modules)) {}
  IgnoredStates(std::initializer_list<std::shared_ptr<torch::nn::Module>> modules)
      : modules_(modules) {}

  void push_back(at::Tensor parameter) { parameters_.push_back(std::move(parameter)); }
  bool empty() const noexcept { return parameters_.empty() && modules_.empty(); }
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  const Modules& modules() const noexcept { return modules_; }

 private:
  std::vector<at::Tensor> parameters_;
  Modules modules_;
};

struct FsdpOptions {
  // Over which the module is sharded.  Required: the library keeps no default group.
  std::shared_ptr<ProcessGroup> process_group;
  // For the hybrid strategies, over which it is replicated; `process_group` is then the sharding
  // one.  Where not given, the hybrid strategies split process_group by node: shard inside,
  // replicate across (ranks are taken to be laid out node by node, local_world_size on each).
  std::shared_ptr<ProcessGroup> replicate_group;
  // Ranks of a node, for the split; where not given, the launcher's local_world_size.
  std::optional<int> node_size;

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  CPUOffload cpu_offload;
  // Which submodules become units of their own, beside the root; none where it is empty.
  WrapPolicy auto_wrap_policy;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  MixedPrecision mixed_precision;
  // At most one of the two.  Modules (with everything below them) and parameters that stay as they
  // are: not sharded, their gradients not reduced.
  std::vector<std::shared_ptr<torch::nn::Module>> ignored_modules;
  IgnoredStates ignored_states;
  // Called for every module with parameters or buffers of its own on the meta device, to give it
  // memory on the compute device and values.  Where empty, modules of torch::nn get uninitialized
  // memory and their reset_parameters().
  std::function<void(torch::nn::Module&)> param_init_fn;
  // Where the module computes; where not given, where its parameters are (the CPU for meta).
  std::optional<c10::Device> device_id;
  // Every rank takes rank 0's parameters and buffers.
  bool sync_module_states = false;
  // Gather the next unit of forward before the current one computes; the order is that of the
  // forward before.
  bool forward_prefetch = false;
  // On CUDA: let the CPU wait rather than run ahead by more than two gathered units.
  bool limit_all_gathers = true;
  // true: the optimizer gets one tensor a parameter, its rows on this rank (PyTorch: a flat piece);
  // false: one flat tensor a unit (and dtype).
  bool use_orig_params = false;

  // Not in PyTorch: neighbouring units whose gathered parameters fit together in this many bytes
  // share their collectives.  0: each unit has its own.
  std::int64_t bucket_bytes = 4 << 20;
  // Not in PyTorch: for which modules checkpoint_module() recomputes.  Empty: none.
  std::function<bool(const torch::nn::Module&)> activation_checkpointing_policy;
};

}  // namespace fsdp
