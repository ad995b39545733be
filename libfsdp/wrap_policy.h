// SPDX-License-Identifier: Apache-2.0
// Which submodules become units: sets of parameters that are gathered and freed together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

// Asked of every submodule, as PyTorch's auto_wrap_policy.  With `recurse` true: whether to look
// into the module's children; children are decided before their parent.  With `recurse` false:
// whether the module becomes a unit; `nonwrapped_numel` counts the elements of its parameters
// that no unit below it has.  The root always is one and is not asked about (but for recursion).
using WrapPolicy = std::function<bool(const torch::nn::Module& module, bool recurse,
                                      std::int64_t nonwrapped_numel)>;

// Every module for which `is_unit` is true; what PyTorch calls a lambda or custom policy.
WrapPolicy custom_policy(std::function<bool(const torch::nn::Module&)> is_unit);

// Every module of one of these types: module_wrap_policy<BlockImpl, EncoderLayerImpl>().
template <typename... Modules>
WrapPolicy module_wrap_policy();

// Every module with at least this many elements of its own, not counting units below it, except
// module lists and dicts (which are never called) and, as units of the modules around them rather
// than by themselves, attention modules.
WrapPolicy size_based_auto_wrap_policy(std::int64_t min_num_params = 100'000'000);

// Every module.
WrapPolicy always_wrap_policy();

// Modules that were marked by wrap(), and no others.  See wrap.
WrapPolicy wrapped_policy();

// Whether any of the policies wants the module.
WrapPolicy any_of(std::vector<WrapPolicy> policies);

// Manual wrapping, as PyTorch's enable_wrap() and wrap(): inside the scope, wrap(module) marks the
// module as a unit; outside of any, it does nothing, so that one model builds both ways.
//   fsdp::EnableWrap scope;
//   block = register_module("block", fsdp::wrap(Block(64)));
// The mark holds for the module's life, wherever it is registered.
// Thread-safe: a scope is of its thread.
class EnableWrap {
 public:
  EnableWrap();
  ~EnableWrap();
  EnableWrap(const EnableWrap&) = delete;
  EnableWrap& operator=(const EnableWrap&) = delete;
};
void mark_wrapped(const std::shared_ptr<torch::nn::Module>& module);
template <typename Holder>
Holder wrap(Holder module);

// The units a policy chooses, in the order of named_modules(); names relative to the root, without
// the root itself.  `ignored` modules and what is below them are left out.
std::vector<std::string> unit_names(const torch::nn::Module& root, const WrapPolicy& policy,
                                    const std::vector<const torch::nn::Module*>& ignored = {});

}  // namespace fsdp

#include "libfsdp/internal/wrap_policy_inl.h"
