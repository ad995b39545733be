// SPDX-License-Identifier: Apache-2.0
// Calls a module that is a unit as PyTorch would: see call().
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "libfsdp/detail/forward_inputs.h"
#include "libfsdp/tensor_tree.h"

namespace fsdp {
namespace internal {

struct Unit;

// While it lives, the module casts its inputs and outputs as a whole.
class UnitCall {
 public:
  explicit UnitCall(const torch::nn::Module& module);
  ~UnitCall();
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

  const InputCast& inputs() const noexcept { return inputs_; }
  const InputCast& outputs() const noexcept { return outputs_; }

 private:
  Unit* unit_ = nullptr;
  bool was_called_ = false;
  InputCast inputs_;
  InputCast outputs_;
};

template <typename Module, typename... Args>
concept HasForward = requires(Module& module, Args&&... args) {
  module.forward(std::forward<Args>(args)...);
};

}  // namespace internal

// Calls the forward of a module that fully_shard() made a unit, from the forward around it:
//   x = fsdp::call(*block, x);
// Inputs and outputs are cast as its mp_policy says, at any depth (see tensor_tree.h), as PyTorch
// does; without call() they are cast at the operators that take its parameters.  For any other
// module, only calls forward.
template <typename Module, typename... Args>
auto call(Module& module, Args&&... args) {
  if constexpr (requires { module->forward(std::forward<Args>(args)...); }) {
    return call(*module, std::forward<Args>(args)...);
  } else if constexpr (!internal::HasForward<Module, Args...>) {
    static_assert(internal::HasForward<Module, Args...>,
                  "the module has no forward() that takes these arguments");
  } else {
    const internal::UnitCall scope(module);
    std::tuple<internal::ForwardArgument<Args>...> inputs(
        internal::ForwardArgument<Args>(std::forward<Args>(args), scope.inputs())...);
    const auto run = [&](auto&... input) -> decltype(auto) {
      return module.forward(input.get()...);
    };
    const auto give_back = [](auto&... input) { (input.give_back(), ...); };
    if constexpr (std::is_void_v<decltype(std::apply(run, inputs))>) {
      std::apply(run, inputs);
      std::apply(give_back, inputs);
    } else {
      auto result = std::apply(run, inputs);
      std::apply(give_back, inputs);
      visit_tensors(result, [&](at::Tensor& tensor) {
        tensor = internal::prepared_tensor(tensor, scope.outputs());
      });
      return result;
    }
  }
}

}  // namespace fsdp
