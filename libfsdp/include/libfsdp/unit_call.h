// SPDX-License-Identifier: Apache-2.0
// Calls a module that is a unit as PyTorch would: see call().
#pragma once

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "libfsdp/tensor_tree.h"

namespace fsdp {

struct InputCast {
  std::optional<c10::Device> device;     // default: tensors stay where they are
  std::optional<c10::ScalarType> dtype;  // applies only to floating-point tensors
};

namespace internal {

struct Unit;

// GPT or GPTImpl -> GPTImpl
template <typename M, typename = void>
struct ImplOf {
  using type = M;
};
template <typename M>
struct ImplOf<M, std::void_t<typename M::ContainedType>> {
  using type = typename M::ContainedType;
};

at::Tensor prepared_tensor(const at::Tensor& tensor, const InputCast& cast);

// An argument's tensors before and after preparation.
class PreparedTensors {
 public:
  // Prepares the tensors of `value` in place.
  template <typename T>
  void prepare(T& value, const InputCast& cast) {
    visit_tensors(value, [&](at::Tensor& tensor) {
      before_.push_back(tensor);
      tensor = prepared_tensor(tensor, cast);
      after_.push_back(tensor);
    });
  }
  // Replaces prepared tensors in `value` by their originals.
  template <typename T>
  void restore(T& value) const {
    std::size_t place = 0;
    visit_tensors(value, [&](at::Tensor& tensor) { tensor = original_of(tensor, place++); });
  }

 private:
  // `place`: the tensor's position now, usually that of its preparation.
  const at::Tensor& original_of(const at::Tensor& tensor, std::size_t place) const;

  std::vector<at::Tensor> before_;
  std::vector<at::Tensor> after_;
};

// Passes an argument of forward to the module, with the caller's value category.  Without
// preparation the module gets the caller's own object, otherwise a copy.  What the module writes to
// the copy of an lvalue is copied back, except tensors that were only prepared.  Lives as long as
// the call.
template <typename Arg>
class ForwardArgument {
  using Value = std::remove_cvref_t<Arg>;
  static constexpr bool kCopied = TensorTree<Value>::kHoldsTensors;
  static constexpr bool kGivenBack =
      kCopied && std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>;
  struct Nothing {};

 public:
  ForwardArgument(Arg&& given, const InputCast& cast) : given_(given) {
    if constexpr (kCopied) {
      if (!cast.device && !cast.dtype) return;
      copy_.emplace(std::as_const(given));
      tensors_.prepare(*copy_, cast);
    }
  }

  Arg&& get() {
    if constexpr (kCopied) {
      if (copy_) return static_cast<Arg&&>(*copy_);
    }
    return static_cast<Arg&&>(given_);
  }

  // Call after the module has run.
  void give_back() {
    if constexpr (kGivenBack) {
      if (!copy_) return;
      tensors_.restore(*copy_);
      // Not moved: elements of a container stay where the caller may point to them.
      given_ = std::as_const(*copy_);
    }
  }

 private:
  std::remove_reference_t<Arg>& given_;
  [[no_unique_address]] std::conditional_t<kCopied, std::optional<Value>, Nothing> copy_;
  [[no_unique_address]] std::conditional_t<kCopied, PreparedTensors, Nothing> tensors_;
};

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
