// SPDX-License-Identifier: Apache-2.0
// Selects the submodules that become units: sets of parameters gathered and resharded together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "libfsdp/unit_call.h"

namespace fsdp {

// Called for every submodule, like PyTorch's auto_wrap_policy.  With `recurse` true, returns
// whether to look into the module's children; `nonwrapped_numel` counts all its parameters.  With
// `recurse` false, returns whether the module becomes a unit; `nonwrapped_numel` leaves out
// parameters in units below it.  Children are decided before their parent, and a module that is not
// looked into is not a unit.  The root is always a unit; the policy decides only whether to look
// into it.
using WrapPolicy = std::function<bool(const torch::nn::Module& module, bool recurse,
                                      std::int64_t nonwrapped_numel)>;

using ModulePredicate = std::function<bool(const torch::nn::Module&)>;

// Returns whether a module is of one of these types or derives from one.  Each is a module's type
// or its holder: instances_of<BlockImpl, torch::nn::Linear>().
template <typename... Modules>
ModulePredicate instances_of();

// Selects every module for which `is_unit` is true; PyTorch calls it a lambda or custom policy.
WrapPolicy custom_policy(ModulePredicate is_unit);

// Selects every module of one of these types: module_wrap_policy<BlockImpl, EncoderLayerImpl>().
// Equivalent to PyTorch's former transformer_auto_wrap_policy.
template <typename... Modules>
WrapPolicy module_wrap_policy();

// Selects every module with at least this many elements that are not in a unit below it.
// `is_leaf`: modules that are not units and whose children never are, so that their
// parameters belong to the unit around them; default: MultiheadAttention.  `is_excluded`:
// modules that are not units, while those below them may be; default: ModuleList and
// ModuleDict.
WrapPolicy size_based_auto_wrap_policy(std::int64_t min_num_params = 100'000'000,
                                       ModulePredicate is_leaf = {},
                                       ModulePredicate is_excluded = {});

// Selects every module.
WrapPolicy always_wrap_policy();

// Selects only modules that were marked by wrap().  See wrap.
WrapPolicy wrapped_policy();

// Selects modules that any of the policies selects.
WrapPolicy any_of(std::vector<WrapPolicy> policies);

// Manual wrapping, like PyTorch's enable_wrap() and wrap(): inside the scope, wrap(module) marks
// the module as a unit for wrapped_policy().  Outside of any scope it does nothing, so one model
// builds both ways.
//   fsdp::EnableWrap scope;
//   block = register_module("block", fsdp::wrap(Block(64)));
// The mark holds for the module's life, wherever it is registered.  Scopes nest.
// Thread-safe: a scope belongs to its thread.
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

// Returns the units that a policy chooses, in the order of named_modules(); names are relative to
// the root, and the root itself is left out.  A module that is registered in several places is
// decided once and has its first name.  `ignored` modules and those below them are left out, and
// their parameters and the `ignored_parameters` are not counted.
std::vector<std::string> unit_names(const torch::nn::Module& root, const WrapPolicy& policy,
                                    const std::vector<const torch::nn::Module*>& ignored = {},
                                    const std::vector<at::Tensor>& ignored_parameters = {});

template <typename... Modules>
ModulePredicate instances_of() {
  static_assert(
      (... && std::is_base_of_v<torch::nn::Module, typename internal::ImplOf<Modules>::type>),
      "a policy selects types of torch::nn::Module, or their holders");
  return [](const torch::nn::Module& module) {
    return (... ||
            (dynamic_cast<const typename internal::ImplOf<Modules>::type*>(&module) != nullptr));
  };
}

template <typename... Modules>
WrapPolicy module_wrap_policy() {
  return custom_policy(instances_of<Modules...>());
}

template <typename Holder>
Holder wrap(Holder module) {
  if constexpr (requires { module.ptr(); }) {
    mark_wrapped(module.ptr());
  } else {
    mark_wrapped(module);
  }
  return module;
}

}  // namespace fsdp
