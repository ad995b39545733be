// SPDX-License-Identifier: Apache-2.0
// The front door: an unmodified module, sharded over the ranks of a process group.
//
//   auto group = fsdp::init_process_group();
//   GPT model(config);                                   // any torch::nn::Module
//   fsdp::FsdpOptions options;
//   options.process_group = group;
//   options.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>();
//   fsdp::FullyShardedDataParallel<GPT> sharded(model, options);
//   torch::optim::AdamW optimizer(sharded.parameters(), 1e-3);   // after wrapping
//   auto loss = loss_of(sharded.forward(tokens));
//   loss.backward();
//   sharded.clip_grad_norm_(1.0);
//   optimizer.step();
//
// Note [first touch]: parameters of the wrapped module have no memory between uses.  The first
// operator that takes one, in forward or backward, gathers its unit; a unit is resharded when an
// operator of an unrelated one runs.  Operators may use parameters only inside forward(), inside a
// backward of its results, or inside summon_full_params().  Anywhere else they throw, because ranks
// would not gather together.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/gathered.h"
#include "libfsdp/options.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/unit_call.h"

namespace fsdp {

class ShardedModule;

namespace internal {
class Engine;
struct EngineLife;
struct Parameter;
struct PerModule;
struct Unit;
struct WrappedModule;
Engine& engine_of(const ShardedModule& module);  // see libfsdp/internal/engine/engine.h
}  // namespace internal

// For a parameter that is part of a larger one (placement.h), only the part is summoned.
struct SummonOptions {
  bool recurse = true;  // units below the root too
  // Copy values written to full parameters back to the shards when the scope ends; ranks must write
  // the same.  kNoShard keeps written values in any case, as in PyTorch, unless rank0_only.
  bool writeback = true;
  bool rank0_only = false;  // other ranks see the parameters without memory
  bool offload_to_cpu = false;
  bool with_grads = false;  // needs use_orig_params and not offload_to_cpu
};

// While it lives, the module's parameters are full, in the dtype the module was built with.
class FullParams {
 public:
  FullParams(FullParams&&) noexcept;
  FullParams& operator=(FullParams&&) = delete;
  // Collective.  Writes back and frees.  Destructors do not throw: a failure here is thrown by the
  // next forward; call close() to see it at once.
  ~FullParams();
  void close();

 private:
  friend class ShardedModule;
  class Scope;
  explicit FullParams(std::unique_ptr<Scope> scope);
  std::unique_ptr<Scope> scope_;
};

// A parameter, buffer or gradient with its name in the module, without any wrapper's prefix.
using NamedTensor = std::pair<std::string, at::Tensor>;

// A gather that ShardedModule::unshard() has started.
class UnshardHandle {
 public:
  UnshardHandle(std::weak_ptr<internal::EngineLife> life, internal::Unit* unit);
  // Collective with other ranks' calls.  Lets the caller's stream use the parameters.
  void wait();

 private:
  std::weak_ptr<internal::EngineLife> life_;
  internal::Unit* unit_;
};

// Everything except forward: the part that does not depend on the module's type.
//
// A handle may belong to a module inside a sharded one (see fully_shard.h).  It then covers that
// module alone: its parameters, units and state, under their names in that module.
class ShardedModule {
 public:
  // Collective.  Shards the module in place.
  // Requires: afterwards nothing but the module's own forward moves or replaces the module's
  // parameters (to(), load, set_data), and nothing registers more; otherwise the next forward
  // throws.  An optimizer over the module's own parameters, made before or after, throws in its
  // first step after a backward.
  // Parameters may be frozen and thawed at any time between steps, by set_requires_grad() on the
  // module's parameter or on its shard; the other one follows at the next forward.  Every rank must
  // do the same.  If use_orig_params is false, all parameters of a unit must change together, or
  // forward throws.
  // Throws: c10::Error for options that contradict each other, parameters that are sharded already,
  // parameters shared by several units, frozen parameters mixed with others if use_orig_params is
  // false, modules on several devices, meta parameters that nothing initializes, ranks whose
  // modules or options differ.
  ShardedModule(std::shared_ptr<torch::nn::Module> module, FsdpOptions options);
  // Not collective.  Leaves the module's parameters without memory, unless a module around it was
  // sharded later and is still in use.
  ~ShardedModule();
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;

  const std::shared_ptr<torch::nn::Module>& module() const noexcept;
  // Returns the options of the outermost module.
  const FsdpOptions& options() const;

  // Returns the tensors for the optimizer.  With use_orig_params: each parameter's rows on this
  // rank, in the order of the module; else flat tensors, one for each unit and dtype.  Rows run
  // over dimension 0: [rows, ...].  For a parameter with fewer rows than ranks, rows run over as
  // many leading dimensions as necessary ([8, 512, 64] on 16 ranks: [256, 64]), in the end over
  // elements.  The shape is [0] if a rank has nothing of a 0-dimensional parameter.  Frozen
  // parameters are included.  Ignored parameters come last, unchanged.  Stable for the life of this
  // object.
  std::vector<at::Tensor> parameters() const;
  // The same with names: of the parameters, or "<unit>._flat_param" (followed by a dtype if a unit
  // has several).
  std::vector<NamedTensor> named_parameters() const;
  std::vector<NamedTensor> named_buffers() const;

  // While false, backward keeps full gradients, unreduced; the next backward while true reduces
  // their sum.  Until then .grad of parameters() cannot be read, clipped or stepped, but
  // zero_grad() drops the kept gradients.  See no_sync.
  // `recurse`, here and below: applies to the units below this module's own as well.
  void set_requires_gradient_sync(bool sync, bool recurse = true);
  bool requires_gradient_sync() const;

  // The following are FSDP2's; libfsdp/sharded/unit_controls.cpp.

  // Collective.  Gathers this module's own unit now, if it is not gathered, ahead of the operators
  // that use it.  The unit is resharded as usual, or by reshard().  With `async`, returns before
  // the gather is done: wait() of the result, or the unit's first use, waits for the gather.
  // Throws: c10::Error inside summon_full_params; for a wrapper, outside forward and backward.
  UnshardHandle unshard(bool async = false);
  // Frees the gathered parameters of this module's own unit.  On the outermost module of
  // fully_shard(): ends a forward that no backward follows, and frees all units.
  void reshard();
  // Sets whether units are resharded after forward (initially: as the strategy says) and after
  // backward (initially: true).  A unit that stays gathered is gathered again once its shards were
  // stepped.
  void set_reshard_after_forward(bool reshard, bool recurse = true);
  void set_reshard_after_backward(bool reshard, bool recurse = true);
  // While false, gradients of a hybrid strategy are reduced inside a replica and kept; the next
  // backward while true takes the mean of their sum over the replicas.  Until then clip_grad_norm_
  // throws.
  void set_requires_all_reduce(bool all_reduce, bool recurse = true);
  // While false, backward of any part of the outermost module returns before its last gradients are
  // reduced.  The gradients are complete after a backward while true; until then clip_grad_norm_
  // and zero_grad throw.
  void set_is_last_backward(bool last);
  // Sets the units to gather, in this order, when this one is used in forward or backward.  Empty:
  // the unit that followed this one the last time.
  // Throws: c10::Error for a module of another outermost one.
  void set_modules_to_forward_prefetch(const std::vector<ShardedModule*>& modules);
  void set_modules_to_backward_prefetch(const std::vector<ShardedModule*>& modules);
  // Divides the sum of gradients by `factor` instead of the number of ranks.  Has no effect on a
  // communication hook, which does its own division.
  void set_gradient_divide_factor(double factor, bool recurse = true);
  // Sets a hook that gets this rank's part of each unit's reduced gradients before the shards do.
  void set_all_reduce_hook(const ReducedHook& hook, bool recurse = true);

  // Returns the handle of `inner`, a module inside this one that is a unit: for the state,
  // parameters and controls of `inner` alone.  Valid as long as the outermost handle.
  // Throws: c10::Error if `inner` is not a unit.
  std::shared_ptr<ShardedModule> part(const torch::nn::Module& inner) const;

  // Clears all gradients, including kept ones, as zero_grad() of the module or of an optimizer over
  // parameters().  On an accelerator, a backward that threw ends in a thread of autograd's: call
  // this before writing to shards after such a backward.
  void zero_grad(bool set_to_none = true);
  // Calls the module's train().
  void train(bool on = true) { module()->train(on); }
  void eval() { train(false); }
  bool is_training() const noexcept { return module()->is_training(); }

  // Collective.  Scales the gradients of all parameters, taken as one vector, to a norm of at most
  // `max_norm`; returns the norm before, a 0-dimensional tensor of the largest gradient dtype.
  // `norm_type`: any p, or an infinity; for 0, as in PyTorch, the number of parameters whose
  // gradient is not zero.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0);

  // Collective.
  // Throws: c10::Error for rank0_only with writeback, with_grads without use_orig_params or with
  // offload_to_cpu, inside forward or backward, or inside another summon_full_params.
  [[nodiscard]] FullParams summon_full_params(const SummonOptions& options = {});
  // Collective.  Applies `fn` to every submodule, children first, with full parameters, and keeps
  // what it wrote.  Returns *this.
  ShardedModule& apply(const std::function<void(torch::nn::Module&)>& fn);

  // Returns the module's state in the form set by set_state_dict_type, under the keys of the
  // unsharded module without any wrapper's prefix: for each module its parameters, then its
  // buffers, then its children.  Tied parameters are under each of their names; ignored ones and
  // buffers are whole.  Dtypes are those that the module was built with, independent of
  // mixed_precision; with kLocal buffers keep their present dtype. kFull: collective, one unit at a
  // time; copies.  Other forms share memory with the module.  Copies made for offload_to_cpu from
  // an accelerator, and of buffers that mixed_precision cast, are stale after parameters() are
  // stepped or loaded.
  // Throws: c10::Error inside forward, backward or summon_full_params.
  StateDict state_dict() const;
  // Collective.  Loads what state_dict() returned, in any form, with whole or sharded tensors.  A
  // sharded tensor must hold this rank's rows here: the number of ranks must be the same.  The next
  // forward sees the new values.
  // Throws: on every rank, c10::Error naming, all at once, missing and unexpected keys (unless
  // `strict` is false) with the nearest names, tensors of other shapes, parts of other ranks, and
  // dtypes that do not convert; nothing is changed then.  Also inside forward, backward or
  // summon_full_params.
  LoadReport load_state_dict(const StateDict& state_dict, bool strict = true);
  const StateDictSettings& state_dict_settings() const noexcept { return state_dict_settings_; }

  // Replaces the reduction of gradients of all units.
  // Throws: c10::Error if one is registered already, for a hybrid strategy, or after a forward.
  void register_comm_hook(const CommHook& hook);

  // Returns the names of the units, "" for the root, parents before children.
  std::vector<std::string> unit_names() const;
  // Returns the modules of the units in the same order; only the root if `root_only`.
  std::vector<std::shared_ptr<torch::nn::Module>> fsdp_modules(bool root_only = false) const;
  // Prints the tree of modules with units, numels and bytes on this rank.
  void print(std::ostream& out) const;

  // Starts recording when this rank gathers, computes and reduces each unit.  On an accelerator,
  // the device's times are recorded, except for steps that a graph replays.  Waits for the device
  // once.
  void start_trace();
  // Writes the recorded spans as Chrome's trace JSON (ui.perfetto.dev).  Each rank is one process
  // in it: files of several ranks can be opened together.
  // Throws: c10::Error if no trace was started, or the file cannot be written.
  void write_trace(const std::filesystem::path& path) const;

  // The following are for the library itself.

  // The units of this module, the root's first.
  std::vector<internal::Unit*> units() const;
  // Returns whether parameters() has flat tensors: use_orig_params is false for some unit.
  bool has_flat_parameters() const;
  // The unit's name, and the parameter's names, in this module.
  std::string name_of(const internal::Unit& unit) const;
  std::vector<std::string> names_of(const internal::Parameter& parameter) const;
  // Ignored parameters.
  const std::vector<NamedTensor>& unmanaged() const noexcept;
  // The dtypes of the module's buffers before mixed_precision cast them, by name.
  const std::unordered_map<std::string, c10::ScalarType>& buffer_dtypes() const noexcept;

  // For fully_shard().
  ShardedModule(std::shared_ptr<torch::nn::Module> module, FsdpOptions options,
                const internal::PerModule& per_module);
  // Returns whether a module sharded around this one has taken its units.
  bool is_taken_in() const noexcept;

 protected:
  void begin_forward();
  void end_forward();
  void abandon_forward(const char* what) noexcept;
  const InputCast& input_cast() const noexcept { return input_cast_; }
  std::shared_ptr<const CheckpointPolicy> checkpoint_policy_;  // null: nothing is recomputed

 private:
  ShardedModule() = default;
  friend internal::Engine& internal::engine_of(const ShardedModule& module);
  friend StateDictSettings set_state_dict_type(ShardedModule&, StateDictType,
                                               std::optional<AnyStateDictConfig>,
                                               std::optional<AnyOptimStateDictConfig>);

  // `per_module`: null for a wrapper.
  void shard(std::shared_ptr<torch::nn::Module> module, FsdpOptions options,
             const internal::PerModule* per_module);
  // Returns the name without this module's own prefix; nothing if the name is not below this
  // module.
  std::optional<std::string> local_name(const std::string& name) const;
  void check_recomputed();

  std::shared_ptr<internal::WrappedModule> wrapped_;
  // Whether checkpoint_policy_ has chosen a module in forward, or nothing is left to check.
  const std::shared_ptr<std::atomic<bool>> recomputes_ = std::make_shared<std::atomic<bool>>(false);
  InputCast input_cast_;
  StateDictSettings state_dict_settings_;
  std::unique_ptr<internal::Engine> engine_;
  std::shared_ptr<internal::EngineLife> life_;
};

std::ostream& operator<<(std::ostream& out, const ShardedModule& module);

// While it lives, gradients are accumulated without being reduced; then each unit's old setting
// returns.
class NoSync {
 public:
  explicit NoSync(ShardedModule& module);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::weak_ptr<internal::EngineLife> life_;
  std::unordered_map<internal::Unit*, bool> before_;
};

// `M`: a module holder (TORCH_MODULE) or a module's type.
template <typename M>
class FullyShardedDataParallel : public ShardedModule {
 public:
  using Impl = typename internal::ImplOf<M>::type;
  static_assert(std::is_base_of_v<torch::nn::Module, Impl>,
                "FullyShardedDataParallel<M>: M is a module's holder or its type, not a pointer");

  FullyShardedDataParallel(std::shared_ptr<Impl> module, FsdpOptions options)
      : ShardedModule(module, std::move(options)), impl_(module.get()) {}
  FullyShardedDataParallel(const torch::nn::ModuleHolder<Impl>& module, FsdpOptions options)
      : FullyShardedDataParallel(module.ptr(), std::move(options)) {}
  template <typename Other>
  requires(!std::is_convertible_v<Other&&, std::shared_ptr<Impl>> &&
           !std::is_base_of_v<torch::nn::ModuleHolder<Impl>, std::remove_cvref_t<Other>>)
      FullyShardedDataParallel(Other&& /*module*/, FsdpOptions options)
      : FullyShardedDataParallel(std::shared_ptr<Impl>(), std::move(options)) {
    static_assert(!std::is_base_of_v<torch::nn::Module, std::remove_cvref_t<Other>>,
                  "FullyShardedDataParallel keeps the module: give its holder or a std::shared_ptr "
                  "to it, not the module itself");
    static_assert(!std::is_pointer_v<std::remove_cvref_t<Other>>,
                  "FullyShardedDataParallel keeps the module: give its holder or a std::shared_ptr "
                  "to it, not a plain pointer");
    static_assert(std::is_base_of_v<torch::nn::Module, std::remove_cvref_t<Other>> ||
                      std::is_pointer_v<std::remove_cvref_t<Other>>,
                  "FullyShardedDataParallel<M>: the module is not an M");
  }

  // Collective, as is backward of its results.  Runs the module's forward in the calling thread.
  // Tensors among the arguments (also inside vectors, tuples, optionals, pairs and maps) are moved
  // to the compute device and cast as mixed_precision says.  The module gets lvalues and rvalues as
  // the caller gave them; the caller sees what the module writes to an lvalue.  Parameters keep the
  // values that forward writes to them in place or puts there by set_data.
  // Requires: every rank writes the same.
  template <typename... Args>
  auto forward(Args&&... args) {
    if constexpr (!internal::HasForward<Impl, Args...>) {
      static_assert(internal::HasForward<Impl, Args...>,
                    "the module has no forward() that takes these arguments");
    } else {
      return call(
          [](Impl& module, auto&&... values) {
            return module.forward(std::forward<decltype(values)>(values)...);
          },
          std::forward<Args>(args)...);
    }
  }
  // The same with another function of the module instead of forward:
  //   sharded.call([](GPTImpl& gpt, auto&&... batch) { return gpt.loss(batch...); }, tokens)
  template <typename Function, typename... Args>
  auto call(Function&& function, Args&&... args) {
    begin_forward();
    const CheckpointPolicyScope recompute(checkpoint_policy_);
    try {
      std::tuple<internal::ForwardArgument<Args>...> inputs(
          internal::ForwardArgument<Args>(std::forward<Args>(args), input_cast())...);
      const auto run = [&](auto&... input) -> decltype(auto) {
        return std::forward<Function>(function)(*impl_, input.get()...);
      };
      const auto give_back = [](auto&... input) { (input.give_back(), ...); };
      if constexpr (std::is_void_v<decltype(std::apply(run, inputs))>) {
        std::apply(run, inputs);
        std::apply(give_back, inputs);
        end_forward();
      } else {
        // A result that refers to the module is copied, because the scope ends here.
        auto result = std::apply(run, inputs);
        std::apply(give_back, inputs);
        end_forward();
        return result;
      }
    } catch (const std::exception& error) {
      abandon_forward(error.what());
      throw;
    } catch (...) {
      abandon_forward("an exception that is not a std::exception");
      throw;
    }
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  Impl* operator->() const noexcept { return impl_; }

 private:
  Impl* impl_;
};

// FullyShardedDataParallel sharded(model, options);
template <typename Impl>
FullyShardedDataParallel(std::shared_ptr<Impl>, FsdpOptions) -> FullyShardedDataParallel<Impl>;
template <typename Impl>
FullyShardedDataParallel(const torch::nn::ModuleHolder<Impl>&, FsdpOptions)
    -> FullyShardedDataParallel<Impl>;

// A NoSync scope as a function, for PyTorch's name.
[[nodiscard]] inline NoSync no_sync(ShardedModule& module) {
  return NoSync(module);
}

}  // namespace fsdp
