// SPDX-License-Identifier: Apache-2.0
// Builds a module without memory, and gives it memory later: the counterpart of Python's
// torch.device("meta") and param_init_fn.
//
//   auto model = [] { fsdp::MetaDevice meta; return GPT(options); }();
//   fsdp::FullyShardedDataParallel<GPT> sharded(model, options);  // materializes
//
// Each rank draws its own random numbers: seed all alike, or set FsdpOptions::sync_module_states.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

namespace fsdp {
namespace internal {

// While one lives, the operators of this thread pass through the fallback of observer.h.
class MetaFactories {
 public:
  MetaFactories();
  ~MetaFactories();
  MetaFactories(const MetaFactories&) = delete;
  MetaFactories& operator=(const MetaFactories&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_key_;
};

// Returns whether such a scope is open in this thread.
bool meta_factories_active() noexcept;

// If the operator makes a tensor without an input tensor or a given device, gives it the meta
// device.  `stack` ends with the operator's arguments.
void send_factory_to_meta(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

}  // namespace internal

// While it lives, factory functions in this thread (torch::empty, randn, full, arange and others)
// make tensors with shape and dtype but without memory and values, unless they name a device:
// torch::tensor() names one internally, and so keeps its values.  Constructors of modules run
// unmodified, except for code that needs values: item(), printing, torch::randperm.  Scopes nest.
// Thread-safe: a scope belongs to its thread.
class MetaDevice {
 public:
  MetaDevice() = default;

 private:
  internal::MetaFactories factories_;
};

// Interface of modules that initialize their own parameters and buffers.  Modules of torch::nn need
// not derive from it; other modules must.
class ResetParameters {
 public:
  virtual ~ResetParameters() = default;
  // Writes every parameter and buffer of the module itself; children write theirs.
  virtual void reset_parameters() = 0;
};

// Replaces the meta tensors of the module (and, with `recurse`, of those below it) by uninitialized
// memory on the device.  The tensors keep their identity: all references see the memory.
void to_empty(torch::nn::Module& module, c10::Device device, bool recurse = true);

// Initializes every module that has its own parameters or buffers on the meta device, children
// before parents.  Calls `param_init_fn`, which also allocates the memory (to_empty()).  If it is
// empty, calls to_empty() and the module's reset_parameters().  Random numbers are drawn in the
// order in which modules are constructed, so most models get the same values as when built with
// memory.  `ignored` modules and those below them stay as they are.
// Throws: c10::Error naming the module if nothing initializes it, if reset_parameters() left a
// parameter unwritten, or if param_init_fn left one on the meta device.
void materialize(torch::nn::Module& root, c10::Device device,
                 const std::function<void(torch::nn::Module&)>& param_init_fn = {},
                 const std::vector<const torch::nn::Module*>& ignored = {});

}  // namespace fsdp
