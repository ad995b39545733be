// SPDX-License-Identifier: Apache-2.0
// Building a module without memory, and giving it memory later: what torch.device("meta") and
// param_init_fn are in Python.
//
//   auto model = [] { fsdp::MetaDevice meta; return GPT(options); }();
//   fsdp::FullyShardedDataParallel<GPT> sharded(model, options);  // materializes
//
// Each rank draws its own random numbers: seed them alike, or set FsdpOptions::sync_module_states.
#pragma once

#include <functional>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "libfsdp/internal/engine/meta_factories.h"

namespace fsdp {

// While it lives, tensors that this thread makes out of none (torch::empty, randn, full, arange and
// their like) have shape and dtype but neither memory nor values, unless they name a device:
// torch::tensor() does inside, and so keeps its values.  Constructors of modules run unmodified,
// but for what needs values: item(), printing, torch::randperm. Scopes nest.  Thread-safe: a scope
// is of its thread.
class MetaDevice {
 public:
  MetaDevice() = default;

 private:
  internal::MetaFactories factories_;
};

// Modules that know how to initialize parameters and buffers of their own.  Those of torch::nn need
// not; deriving from this is for others.
class ResetParameters {
 public:
  virtual ~ResetParameters() = default;
  // Writes every parameter and buffer that the module itself has; children have theirs.
  virtual void reset_parameters() = 0;
};

// Replaces the meta tensors of the module (and, with `recurse`, of those below it) by uninitialized
// memory on the device.  The tensors keep their identity: whoever holds them sees the memory.
void to_empty(torch::nn::Module& module, c10::Device device, bool recurse = true);

// Initializes every module that has parameters or buffers of its own on the meta device, children
// before parents: by `param_init_fn`, which also gives it memory (to_empty), or where that is empty
// by to_empty() and the module's reset_parameters().  Random numbers are drawn in the order in
// which modules are constructed, so that most models get the values that building them with memory
// would have given.  `ignored` modules and what is below them stay as they are. Throws: c10::Error
// naming the module where nothing initializes it, where reset_parameters() left a parameter
// unwritten, or where param_init_fn left one on the meta device.
void materialize(torch::nn::Module& root, c10::Device device,
                 const std::function<void(torch::nn::Module&)>& param_init_fn = {},
                 const std::vector<const torch::nn::Module*>& ignored = {});

}  // namespace fsdp
