// SPDX-License-Identifier: Apache-2.0
// One object for everything that a training program needs of the library: the counterpart of
// Lightning's FSDPStrategy (or DDPFullyShardedStrategy, see fairscale_options.h), under its names.
//
//   fsdp::StrategyOptions options;
//   options.fsdp.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>();
//   options.state_dict_type = fsdp::StateDictType::kSharded;
//   fsdp::Strategy<GPT> strategy(options);
//   strategy.setup_environment();
//   GPT model{nullptr};
//   {
//     const auto empty = strategy.tensor_init_context(true);
//     model = GPT(config);
//   }
//   strategy.setup(model, [](const auto& parameters) { return one(AdamW(parameters, 1e-3)); });
//   auto extra = strategy.load_checkpoint("last.ckpt");
//   for (...) {
//     auto loss = strategy.training_step(batch);   // GPTImpl::training_step(batch), sharded
//     loss.backward();
//     strategy.optimizers()[0]->step();
//   }
//   strategy.save_checkpoint(strategy.dump_checkpoint({{"epoch", 1}}), "last.ckpt");
//   strategy.teardown();
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/options.h"
#include "libfsdp/process_group.h"
#include "libfsdp/reduce.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/state_value.h"
#include "libfsdp/wrap_policy.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

struct StrategyOptions {
  // Default: "nccl" for CUDA devices, else "gloo".
  std::optional<std::string> process_group_backend;
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  // How the ranks find each other: see ProcessGroupOptions.  Its backend and timeout are ignored.
  ProcessGroupOptions cluster_environment;
  // One for each rank of this node, by local rank; empty: the CPU, or what the backend needs.  If
  // cluster_environment.rank is set, several devices need its local_rank, too.
  std::vector<c10::Device> parallel_devices;
  // For the hybrid strategies, instead of nodes: the number of replicas, and of ranks in each.
  // Ranks of one replica are numbered consecutively.
  std::optional<std::pair<int, int>> device_mesh;
  // cpu_offload, mixed_precision, auto_wrap_policy, activation_checkpointing_policy,
  // sharding_strategy and the rest; process_group and device_id are set by the strategy.
  FsdpOptions fsdp;
  // kFull: checkpoints are one file; kSharded: a folder that all ranks write.
  StateDictType state_dict_type = StateDictType::kFull;
  bool state_dict_to_cpu = true;
};

// Returns the options that a Trainer of Lightning knows by this name: "fsdp", "fsdp_cpu_offload".
// Throws: c10::Error for another one.
StrategyOptions strategy_options(std::string_view name);

using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;
// Makes optimizers from the parameters to optimize (see ShardedModule::parameters).
using ConfigureOptimizers = std::function<Optimizers(const std::vector<at::Tensor>& parameters)>;

// While it lives, modules are built without memory if `empty_init` is true.
class TensorInitScope {
 public:
  explicit TensorInitScope(bool empty_init) {
    if (empty_init) meta_.emplace();
  }

 private:
  std::optional<MetaDevice> meta_;
};

// The part that does not depend on the module's type.
class StrategyBase {
 public:
  // Throws: c10::Error for options that contradict each other.
  explicit StrategyBase(StrategyOptions options);
  virtual ~StrategyBase();
  StrategyBase(const StrategyBase&) = delete;
  StrategyBase& operator=(const StrategyBase&) = delete;

  // Collective.  Makes the process group; call it first after the constructor.
  void setup_environment();
  // Waits for the other ranks, and drops optimizers, module and process group, if they exist.
  // Collective if setup_environment() ran.
  void teardown();

  // Returns the device of this rank, after setup_environment().
  c10::Device root_device() const { return process_group()->device(); }
  int global_rank() const { return process_group()->rank(); }
  int world_size() const { return process_group()->size(); }
  bool is_global_zero() const { return global_rank() == 0; }
  std::chrono::milliseconds timeout() const noexcept { return options_.timeout; }
  const StrategyOptions& options() const noexcept { return options_; }
  // Throws: c10::Error before setup_environment().
  const std::shared_ptr<ProcessGroup>& process_group() const;

  // Returns a scope in which wrap() marks modules as units.  If any is marked, auto_wrap_policy is
  // ignored.
  [[nodiscard]] EnableWrap model_sharded_context() const { return EnableWrap(); }
  // Returns a scope.  If `empty_init`, modules built in it have no memory until setup(), which
  // initializes them on the compute device: nothing is made twice or moved.
  [[nodiscard]] TensorInitScope tensor_init_context(bool empty_init = false) const {
    return TensorInitScope(empty_init);
  }

  // Throws: c10::Error before setup(); for an optimizer with tensors that are not the sharded
  // module's parameters.
  void setup_optimizers(const ConfigureOptimizers& configure);
  const Optimizers& optimizers() const noexcept { return optimizers_; }

  // All of these are collective.  `name` appears in errors.
  void barrier(const std::string& name = "barrier") const;
  // Returns rank `src`'s value.  Nothing is pickled.
  StateValue broadcast(const StateValue& value, int src = 0) const;
  std::string broadcast(const std::string& text, int src = 0) const;
  std::filesystem::path broadcast(const std::filesystem::path& path, int src = 0) const {
    return broadcast(path.string(), src);
  }
  at::Tensor broadcast(const at::Tensor& tensor, int src = 0) const;
  // Returns a new tensor; means of integers are floating-point, as in Python.  `group`: null means
  // all ranks.
  at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group = nullptr,
                    ReduceKind kind = ReduceKind::kMean) const;
  // The same by the name of the operation, see reduce_kind().
  at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                    std::string_view op) const {
    return reduce(tensor, group, reduce_kind(op));
  }

  // Returns the module's state in the form of state_dict_type.  Collective for kFull, where the
  // state is empty except on rank 0.
  StateDict lightning_module_state_dict() const;
  // Returns the optimizer's state: by names for kSharded, by PARAM_ID for kFull.
  StateDict optimizer_state(const torch::optim::Optimizer& optimizer) const;

  // Collective.  Returns the input of save_checkpoint(): `extra`, "state_dict", "optimizer_states",
  // and defaults for entries that Lightning requires and `extra` lacks: "epoch", "global_step",
  // "pytorch-lightning_version", "loops", "callbacks", "lr_schedulers".
  StateDict dump_checkpoint(const StateDict& extra = {}) const;
  // Collective.  Rank 0's path is used.  kFull: one file; kSharded: a folder with `model`,
  // `optimizer_0`, ... and the rest in meta.pt.  An existing checkpoint is replaced in one step.
  // `storage_options`: as in Lightning, whose strategies pass them to plugins that write elsewhere;
  // must not be given, because this strategy writes by itself.
  // Throws: as save() of checkpoint.h; c10::Error if there are storage options.
  void save_checkpoint(const StateDict& checkpoint, const std::filesystem::path& path,
                       const std::optional<StateDict>& storage_options = std::nullopt) const;
  // Collective.  Loads model and optimizers, at any world size, from a file or a folder, which it
  // detects itself.  Returns everything else of the checkpoint.  Optimizers are not loaded if there
  // are none here (evaluation) or none in the checkpoint.
  // Throws: as load() of checkpoint.h.
  StateDict load_checkpoint(const std::filesystem::path& path, bool strict = true);

  // Lightning's names.  NOLINTBEGIN(readability-identifier-naming)
  // Checkpoints are loaded into the sharded module, after setup().
  static constexpr bool restore_checkpoint_after_setup = true;
  // load_checkpoint() has loaded the optimizers.
  static constexpr bool lightning_restore_optimizer = false;
  // NOLINTEND(readability-identifier-naming)

 protected:
  // Returns the options for wrapping `module`.
  FsdpOptions wrap_options(const torch::nn::Module& module);
  virtual ShardedModule* sharded() const noexcept = 0;
  // Throws: c10::Error before setup().
  void require_setup() const;
  virtual void drop_module() noexcept = 0;

 private:
  const StrategyOptions options_;
  std::shared_ptr<ProcessGroup> group_;
  Optimizers optimizers_;
};

// `M`: a module holder or a module's type, with forward() and those of training_step(),
// validation_step(), test_step() and predict_step() that the program calls.
template <typename M>
class Strategy : public StrategyBase {
 public:
  using Sharded = FullyShardedDataParallel<M>;
  using Impl = typename Sharded::Impl;

  using StrategyBase::StrategyBase;

  // Collective.  Shards the module, moves it to root_device(), and makes the optimizers.
  // Throws: as ShardedModule and setup_optimizers().
  template <typename Holder>
  Sharded& setup(const Holder& module, const ConfigureOptimizers& configure = {}) {
    model_ = std::make_unique<Sharded>(module, wrap_options(*module));
    if (configure) setup_optimizers(configure);
    return *model_;
  }
  // Throws: c10::Error before setup(), as do all steps.
  Sharded& model() const {
    require_setup();
    return *model_;
  }

  // Calls the module's function of that name like forward (see FullyShardedDataParallel).
  template <typename... Args>
  auto training_step(Args&&... batch) {
    return model().call(
        [](Impl& module, auto&&... values) {
          return module.training_step(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }
  // The evaluation steps record no gradients.
  template <typename... Args>
  auto validation_step(Args&&... batch) {
    const at::NoGradGuard no_grad;
    return model().call(
        [](Impl& module, auto&&... values) {
          return module.validation_step(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }
  template <typename... Args>
  auto test_step(Args&&... batch) {
    const at::NoGradGuard no_grad;
    return model().call(
        [](Impl& module, auto&&... values) {
          return module.test_step(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }
  // Without predict_step() in the module, calls its forward().
  template <typename... Args>
  auto predict_step(Args&&... batch) {
    const at::NoGradGuard no_grad;
    return model().call(
        [](Impl& module, auto&&... values) {
          if constexpr (requires {
                          module.predict_step(std::forward<decltype(values)>(values)...);
                        })
            return module.predict_step(std::forward<decltype(values)>(values)...);
          else
            return module.forward(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }

 protected:
  ShardedModule* sharded() const noexcept override { return model_.get(); }
  void drop_module() noexcept override { model_.reset(); }

 private:
  std::unique_ptr<Sharded> model_;
};

}  // namespace fsdp
