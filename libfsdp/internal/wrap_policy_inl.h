// SPDX-License-Identifier: Apache-2.0
// The templates of libfsdp/wrap_policy.h.
#pragma once

#include <utility>

#include <torch/nn/module.h>

namespace fsdp {

template <typename... Modules>
WrapPolicy module_wrap_policy() {
  return custom_policy([](const torch::nn::Module& module) {
    return (... || (dynamic_cast<const Modules*>(&module) != nullptr));
  });
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
