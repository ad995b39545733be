// SPDX-License-Identifier: Apache-2.0
// Options for sharding a module.  Names, meanings and defaults are those of PyTorch's
// torch.distributed.fsdp.FullyShardedDataParallel; the members describe the differences.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "libfsdp/device_mesh.h"
#include "libfsdp/process_group.h"
#include "libfsdp/wrap_policy.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

enum class ShardingStrategy {
  // Parameters, gradients and optimizer state are sharded; a unit's parameters are gathered before
  // its forward and again before its backward, and resharded after each.
  kFullShard,
  // Like kFullShard, but parameters stay gathered from forward to backward.
  kShardGradOp,
  // Everything is replicated; gradients are all-reduced.
  kNoShard,
  // kFullShard inside a node, replicas across nodes.
  kHybridShard,
  // kShardGradOp inside a node, replicas across nodes.
  kHybridShardZero2,
};

// Returns PyTorch's name: "FULL_SHARD", ..., "_HYBRID_SHARD_ZERO2".
const char* name_of(ShardingStrategy strategy) noexcept;
// Converts such a name, in upper or lower case, back.  Throws: c10::Error for another name.
ShardingStrategy sharding_strategy_of(std::string_view name);

enum class BackwardPrefetch {
  kNone,
  kBackwardPre,   // gather the next unit before the current one's gradients are computed
  kBackwardPost,  // gather the next unit after the current one's gradients were computed
};

// Only floating-point tensors are cast.
struct MixedPrecision {
  // The dtype of parameters in forward and backward; shards keep the module's original dtype.
  std::optional<c10::ScalarType> param_dtype;
  // The dtype of gradients while they are reduced; default: param_dtype.
  std::optional<c10::ScalarType> reduce_dtype;
  // Buffers are cast when the module is wrapped and stay so, except those of modules that are left
  // alone (see module_classes_to_ignore).
  std::optional<c10::ScalarType> buffer_dtype;
  // Leave gradients in the dtype they were reduced in instead of that of the shards.
  bool keep_low_precision_grads = false;
  // cast_root_forward_inputs casts floating-point arguments of the root's forward to param_dtype;
  // cast_forward_inputs casts, in inner units, those of operators that take parameters.  (PyTorch
  // casts where an inner unit is entered, which a C++ module does not tell.)  Pointwise operators
  // are left alone: they promote dtypes themselves.
  bool cast_forward_inputs = false;
  bool cast_root_forward_inputs = true;
  // Modules for which this is true keep the dtype of their parameters, each as a separate unit.
  // Default: batch norms, as in PyTorch, and only if a wrap policy is given.  Operators on
  // their parameters get inputs in the parameters' dtype, and return results in that of the
  // inputs.
  std::function<bool(const torch::nn::Module&)> module_classes_to_ignore;
};

struct CPUOffload {
  // Shards, gradients and so the optimizer's step stay in (pinned) memory of the CPU.
  bool offload_params = false;
};

// Called once for each unit's gradient, instead of the library's reduction.  NO_SHARD: `unsharded`
// holds the unit's flat gradient, which the hook replaces by the mean over ranks; `sharded` is the
// same tensor.  Otherwise: `unsharded` is [W * N], rank-major, and the hook writes this rank's mean
// to `sharded` [N].  Collective over `group`.
using CommHook = std::function<void(const std::shared_ptr<ProcessGroup>& group,
                                    at::Tensor& unsharded, at::Tensor& sharded)>;

// Called with this rank's part of reduced gradients, [N] in the reduce dtype, which it may change.
using ReducedHook = std::function<void(at::Tensor& reduced)>;

// Either parameters or modules, as in PyTorch.
class IgnoredStates {
 public:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  IgnoredStates() = default;
  // Implicit: an argument is either of them.  NOLINTBEGIN(google-explicit-constructor)
  IgnoredStates(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}
  IgnoredStates(std::initializer_list<at::Tensor> parameters) : parameters_(parameters) {}
  IgnoredStates(Modules modules) : modules_(std::move(modules)) {}
  IgnoredStates(std::initializer_list<std::shared_ptr<torch::nn::Module>> modules)
      : modules_(modules) {}
  // NOLINTEND(google-explicit-constructor)

  void push_back(at::Tensor parameter) { parameters_.push_back(std::move(parameter)); }
  bool empty() const noexcept { return parameters_.empty() && modules_.empty(); }
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  const Modules& modules() const noexcept { return modules_; }

 private:
  std::vector<at::Tensor> parameters_;
  Modules modules_;
};

struct FsdpOptions {
  // The ranks over which the module is sharded.  This or device_mesh is required: the library has
  // no default group.
  std::shared_ptr<ProcessGroup> process_group;
  // For the hybrid strategies: the ranks over which the module is replicated; `process_group` is
  // then the sharding one.  Default: process_group is split by node, to shard inside and replicate
  // across (assuming ranks are numbered node by node, local_world_size on each).
  std::shared_ptr<ProcessGroup> replicate_group;
  // Instead of the two groups: a mesh of one dimension, or of two for the hybrid strategies, the
  // first of which replicates.  Required if parameters are parts of larger ones (placement.h):
  // their norms and checkpoints span all dimensions of the mesh.
  std::optional<DeviceMesh> device_mesh;
  // Ranks of a node, for the split; default: the launcher's local_world_size.
  std::optional<int> node_size;

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  CPUOffload cpu_offload;
  // Selects the submodules that become separate units, beside the root; empty: none.
  WrapPolicy auto_wrap_policy;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  MixedPrecision mixed_precision;
  // Set at most one of the two.  These modules (with everything below them) and parameters stay as
  // they are: not sharded, their gradients not reduced.
  std::vector<std::shared_ptr<torch::nn::Module>> ignored_modules;
  IgnoredStates ignored_states;
  // Called for every module with its own parameters or buffers on the meta device, to give it
  // memory on the compute device and values.  If empty, modules of torch::nn get uninitialized
  // memory and their reset_parameters().  Modules are sharded one after the other, so either
  // function must write only the module's own parameters, and keep their shape, dtype and
  // requires_grad.
  std::function<void(torch::nn::Module&)> param_init_fn;
  // The device of computation; default: the device of its parameters (the CPU for meta).
  std::optional<c10::Device> device_id;
  // Every rank takes rank 0's parameters and buffers.  Without param_init_fn, the others then draw
  // no random numbers for modules on the meta device: seed what comes after, if ranks are to agree.
  bool sync_module_states = false;
  // Gather the next unit of forward before the current one computes, in the order of the previous
  // forward.
  bool forward_prefetch = false;
  // Applies to accelerators.  true: gathers share the memory of two units beside the root, and wait
  // on the device for its previous users; false: a gather starts at once in memory of its own, as
  // much as the allocator gives.  The host waits in neither case.
  bool limit_all_gathers = true;
  // true: the optimizer gets one tensor a parameter, its rows on this rank (PyTorch: a flat piece);
  // false, PyTorch's default: one flat tensor a unit (and dtype).
  bool use_orig_params = true;

  // Not in PyTorch: neighbouring units whose gathered parameters fit together in this many bytes
  // share their collectives. 0: each unit has its own.
  std::int64_t bucket_bytes = 4 << 20;
  // Not in PyTorch: selects the modules for which checkpoint_module() recomputes.  Empty: none.  A
  // warning is printed if modules are selected but the first forward with gradients calls
  // checkpoint_module() for none of them.
  std::function<bool(const torch::nn::Module&)> activation_checkpointing_policy;
};

}  // namespace fsdp
