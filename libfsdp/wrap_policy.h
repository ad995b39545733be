// SPDX-License-Identifier: Apache-2.0
// Which submodules become units: sets of parameters that are gathered and freed together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace fsdp {

// Asked of every submodule, as PyTorch's auto_wrap_policy.  With `recurse` true: whether to look
// into the module's children; `nonwrapped_numel` counts all its parameters.  With `recurse` false:
// whether the module becomes a unit; `nonwrapped_numel` leaves out those that units below it have.
// Children are decided before their parent, and a module that is not looked into becomes no unit.
// The root always is one and is asked only whether to look into it.
using WrapPolicy = std::function<bool(const torch::nn::Module& module, bool recurse,
                                      std::int64_t nonwrapped_numel)>;

using ModulePredicate = std::function<bool(const torch::nn::Module&)>;

// Whether a module is of one of these types or derives from one.  Each is a module's type or its
// holder: instances_of<BlockImpl, torch::nn::Linear>().
template <typename... Modules>
ModulePredicate instances_of();

// Every module for which `is_unit` is true; what PyTorch calls a lambda or custom policy.
WrapPolicy custom_policy(ModulePredicate is_unit);

// Every module of one of these types: module_wrap_policy<BlockImpl, EncoderLayerImpl>().  What
// PyTorch once called transformer_auto_wrap_policy is the same.
template <typename... Modules>
WrapPolicy module_wrap_policy();

// Every module with at least this many elements that no unit below it has.
// `is_leaf`: modules whose children never become units and that become none themselves, so that
// their parameters are part of the unit around them; where empty, MultiheadAttention.
// `is_excluded`: modules that become no unit, while those below them may; where empty, ModuleList
// and ModuleDict.
WrapPolicy size_based_auto_wrap_policy(std::int64_t min_num_params = 100'000'000,
                                       ModulePredicate is_leaf = {},
                                       ModulePredicate is_excluded = {});

// Every module.
WrapPolicy always_wrap_policy();

// Modules that were marked by wrap(), and no others.  See wrap.
WrapPolicy wrapped_policy();

// Whether any of the policies wants the module.
WrapPolicy any_of(std::vector<WrapPolicy> policies);

// Manual wrapping, as PyTorch's enable_wrap() and wrap(): inside the scope, wrap(module) marks the
// module as a unit for wrapped_policy(); outside of any, it does nothing, so that one model builds
// both ways.
//   fsdp::EnableWrap scope;
//   block = register_module("block", fsdp::wrap(Block(64)));
// The mark holds for the module's life, wherever it is registered.  Scopes nest.
// Thread-safe: a scope is of its thread.
class EnableWrap {
 public:
  EnableWrap();
  ~EnableWrap();
  EnableWrap(const EnableWrap&) = delete;
  EnableWrap& operator=(const EnableWrap&) = delete;
};
// `module`: a holder or a shared pointer.
template <typename Holder>
Holder wrap(Holder module);
void mark_wrapped(const std::shared_ptr<torch::nn::Module>& module);

// The units a policy chooses, in the order of named_modules(); names relative to the root, without
// the root itself.  A module that is registered in several places is decided once and has its first
// name.  `ignored` modules and what is below them are left out, and their parameters and the
// `ignored_parameters` are not counted.
std::vector<std::string> unit_names(const torch::nn::Module& root, const WrapPolicy& policy,
                                    const std::vector<const torch::nn::Module*>& ignored = {},
                                    const std::vector<at::Tensor>& ignored_parameters = {});

}  // namespace fsdp

#include "libfsdp/internal/engine/wrap_policy_inl.h"
