// SPDX-License-Identifier: Apache-2.0
// The templates of libfsdp/wrap_policy.h.
#pragma once

#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#include "libfsdp/detail/forward_inputs.h"

namespace fsdp {

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
