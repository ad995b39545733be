// SPDX-License-Identifier: Apache-2.0
// Prepares the arguments of a root's forward: moves and casts tensors at any depth.
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/pimpl.h>

#include "libfsdp/tensor_tree.h"

namespace fsdp {

struct InputCast {
  std::optional<c10::Device> device;     // default: tensors stay where they are
  std::optional<c10::ScalarType> dtype;  // applies only to floating-point tensors
};

namespace internal {

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

}  // namespace internal
}  // namespace fsdp
