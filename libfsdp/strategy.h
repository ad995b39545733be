// SPDX-License-Identifier: Apache-2.0
// Everything a training program asks of "fsdp", behind one object: what Lightning's FSDPStrategy
// (and its DDPFullyShardedStrategy, see fairscale_options.h) are to a Trainer.  Names follow them.
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
  // Of the ranks; where `backend` is not given, "nccl" for CUDA devices, else "gloo".
  std::optional<std::string> process_group_backend;
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  // How the ranks find each other, beside backend and timeout: see ProcessGroupOptions.
  ProcessGroupOptions cluster_environment;
  // One a rank of this node, by local rank; empty: the CPU.
  std::vector<c10::Device> parallel_devices;
  // Copies, and ranks that share one: for the hybrid strategies, in place of nodes.  Ranks of one
  // copy follow each other.
  std::optional<std::pair<int, int>> device_mesh;
  // cpu_offload, mixed_precision, auto_wrap_policy, activation_checkpointing_policy,
  // sharding_strategy and the rest; process_group and device_id are set by the strategy.  Unlike
  // FsdpOptions, use_orig_params is true unless set otherwise here.
  FsdpOptions fsdp = [] {
    FsdpOptions options;
    options.use_orig_params = true;
    return options;
  }();
  // kFull: checkpoints are one file; kSharded: a folder that all ranks write.
  StateDictType state_dict_type = StateDictType::kFull;
  bool state_dict_to_cpu = true;
};

using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;
// Given the parameters to optimize (see ShardedModule::parameters).
using ConfigureOptimizers = std::function<Optimizers(const std::vector<at::Tensor>& parameters)>;

// Builds modules without memory while it lives, where it is told to.
class TensorInitScope {
 public:
  explicit TensorInitScope(bool empty_init) {
    if (empty_init) meta_.emplace();
  }

 private:
  std::optional<MetaDevice> meta_;
};

// What does not depend on the module's type.
class StrategyBase {
 public:
  // Throws: c10::Error for options that contradict each other.
  explicit StrategyBase(StrategyOptions options);
  virtual ~StrategyBase();
  StrategyBase(const StrategyBase&) = delete;
  StrategyBase& operator=(const StrategyBase&) = delete;

  // Collective.  Makes the process group; before everything else but the constructor.
  void setup_environment();
  // Waits for the other ranks, and drops optimizers, module and process group.  Collective where
  // setup_environment() ran; what is not there is not waited for.
  void teardown();

  // Of this rank.
  c10::Device root_device() const;
  int global_rank() const;
  int world_size() const;
  bool is_global_zero() const { return global_rank() == 0; }
  std::chrono::milliseconds timeout() const noexcept { return options_.timeout; }
  const StrategyOptions& options() const noexcept { return options_; }
  // Throws: c10::Error before setup_environment().
  const std::shared_ptr<ProcessGroup>& process_group() const;

  // Modules that wrap() marks while it lives are the units; auto_wrap_policy then does not count.
  [[nodiscard]] EnableWrap model_sharded_context() const { return EnableWrap(); }
  // Where `empty_init`, modules built while it lives have no memory until setup(), which gives it
  // and initializes them where they compute: nothing is made twice or moved.
  [[nodiscard]] TensorInitScope tensor_init_context(bool empty_init = false) const {
    return TensorInitScope(empty_init);
  }

  // Throws: c10::Error before setup(); for an optimizer with tensors that are not the sharded
  // module's parameters.
  void setup_optimizers(const ConfigureOptimizers& configure);
  const Optimizers& optimizers() const noexcept { return optimizers_; }

  // Collective, all of these.  `name` stands in errors.
  void barrier(const std::string& name = "barrier") const;
  // Rank `src`'s value.  Nothing is pickled.
  StateValue broadcast(const StateValue& value, int src = 0) const;
  std::string broadcast(const std::string& text, int src = 0) const;
  std::filesystem::path broadcast(const std::filesystem::path& path, int src = 0) const;
  at::Tensor broadcast(const at::Tensor& tensor, int src = 0) const;
  // A new tensor; integers are averaged as Python does, to floating point.  `group`: all ranks
  // where it is null.
  at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group = nullptr,
                    ReduceKind kind = ReduceKind::kMean) const;

  // Collective for kFull, whose state is empty but on rank 0.  In the form of state_dict_type.
  StateDict lightning_module_state_dict() const;
  // By names for kSharded, by PARAM_ID for kFull.
  StateDict optimizer_state(const torch::optim::Optimizer& optimizer) const;

  // Collective.  What save_checkpoint() takes: `extra`, "state_dict", "optimizer_states", and what
  // Lightning asks of every checkpoint where `extra` has it not: "epoch", "global_step",
  // "pytorch-lightning_version", "loops", "callbacks", "lr_schedulers".
  StateDict dump_checkpoint(const StateDict& extra = {}) const;
  // Collective.  The path is rank 0's.  kFull: one file; kSharded: a folder with `model`,
  // `optimizer_0`, ... and the rest in meta.pt.  A checkpoint that is there is replaced in one
  // step.
  // `storage_options`: as in Lightning, whose strategies take them for plugins that write
  // elsewhere; this one writes by itself. Throws: as save() of checkpoint.h; c10::Error where there
  // are storage options.
  void save_checkpoint(const StateDict& checkpoint, const std::filesystem::path& path,
                       const std::optional<StateDict>& storage_options = std::nullopt) const;
  // Collective.  Loads model and optimizers, at any world size, from a file or a folder: which, it
  // finds out itself.  Returns everything else of the checkpoint.  The optimizers are left alone
  // where there are none (evaluation), or the checkpoint has none.
  // Throws: as load() of checkpoint.h.
  StateDict load_checkpoint(const std::filesystem::path& path, bool strict = true);

  // Checkpoints are loaded into the sharded module, after setup().
  static constexpr bool restore_checkpoint_after_setup = true;
  // load_checkpoint() has loaded the optimizers.
  static constexpr bool lightning_restore_optimizer = false;

 protected:
  // The options for wrapping `module`.
  FsdpOptions wrap_options(const torch::nn::Module& module);
  virtual ShardedModule* sharded() const noexcept = 0;
  virtual void drop_module() noexcept = 0;

 private:
  const StrategyOptions options_;
  std::shared_ptr<ProcessGroup> group_;
  int local_rank_ = 0;
  Optimizers optimizers_;
};

// `M`: a module holder or a module's type, with forward() and those of training_step(),
// validation_step(), test_step() and predict_step() that are called.
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
  // Requires: setup().
  Sharded& model() const { return *model_; }

  // The module's function of that name under the root's bracket (see FullyShardedDataParallel).
  template <typename... Args>
  auto training_step(Args&&... batch) {
    return model_->call(
        [](Impl& module, auto&&... values) {
          return module.training_step(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }
  // Those of evaluation record no gradients.
  template <typename... Args>
  auto validation_step(Args&&... batch) {
    const at::NoGradGuard no_grad;
    return model_->call(
        [](Impl& module, auto&&... values) {
          return module.validation_step(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }
  template <typename... Args>
  auto test_step(Args&&... batch) {
    const at::NoGradGuard no_grad;
    return model_->call(
        [](Impl& module, auto&&... values) {
          return module.test_step(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(batch)...);
  }
  // Where the module has no predict_step(), its forward().
  template <typename... Args>
  auto predict_step(Args&&... batch) {
    const at::NoGradGuard no_grad;
    return model_->call(
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
