// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: backward computes the intermediate values of a function again instead
// of keeping them.  Like PyTorch's torch.utils.checkpoint with use_reentrant=True: the backward of
// the function is a separate backward inside the outer one.
//
//   auto y = fsdp::checkpoint([this](const at::Tensor& h) { return block->forward(h); }, x);
//   x = fsdp::checkpoint_module(block, x);  // where the options' policy says so
//
// The function is called twice and must do the same both times.  Random draws (dropout) from the
// generators of the CPU and of the arguments' devices repeat, under the same autocast.  What the
// function captures must live until backward ends.  Side effects happen twice: a batch norm inside
// updates its running statistics twice.
//
// Gradients flow to the arguments and to every parameter that the function uses, even if no
// argument requires one.  The result requires a gradient whenever gradients are being recorded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "libfsdp/tensor_tree.h"
#include "libfsdp/unit_call.h"

namespace fsdp {

// Selects the modules for which checkpoint_module() recomputes.
using CheckpointPolicy = std::function<bool(const torch::nn::Module&)>;

// Sets this thread's policy while it lives; a sharded module's forward opens a scope with the
// policy of its options.  Scopes nest; a null policy recomputes nothing.  Recomputation runs under
// the policy of the function's first run, so that nested checkpoints behave alike.
class CheckpointPolicyScope {
 public:
  explicit CheckpointPolicyScope(std::shared_ptr<const CheckpointPolicy> policy);
  ~CheckpointPolicyScope();
  CheckpointPolicyScope(const CheckpointPolicyScope&) = delete;
  CheckpointPolicyScope& operator=(const CheckpointPolicyScope&) = delete;

 private:
  std::shared_ptr<const CheckpointPolicy> outer_;
};

// Returns the policy of the innermost scope of this thread; null outside of any scope.
const std::shared_ptr<const CheckpointPolicy>& checkpoint_policy() noexcept;

namespace internal {

bool is_checkpointed(const torch::nn::Module& module);

// The function on a flat list of tensors, some of which may be undefined.
using FlatFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
std::vector<at::Tensor> run_checkpointed(FlatFunction function,
                                         const std::vector<at::Tensor>& inputs);

}  // namespace internal

// Returns the function's result.  Arguments and result may be tensors; optionals, vectors, arrays,
// pairs, tuples and maps of tensors; and any copyable type without tensors.
// Throws: in backward, c10::Error under autograd::grad or under backward with `inputs` or
// create_graph, which reentrant backwards do not support; also if an argument was modified in place
// after the call.
template <typename Function, typename... Args>
auto checkpoint(Function function, Args... args) {
  static_assert(
      std::is_invocable_v<Function&, Args&...>,
      "fsdp::checkpoint(function, arguments...): the function cannot be called with these "
      "arguments, which it gets as lvalues");
  using Result = std::decay_t<std::invoke_result_t<Function&, Args&...>>;
  static_assert(!std::is_void_v<Result>,
                "a function that returns nothing has nothing to recompute");
  if (!at::GradMode::is_enabled()) return Result(function(args...));

  std::tuple<Args...> arguments(std::move(args)...);
  const auto inputs = internal::tensors_of(arguments);
  // The graph keeps the tensors: another reference here would keep them alive for longer.
  internal::clear_tensors(arguments);
  const auto result = std::make_shared<std::optional<Result>>();
  const auto outputs = internal::run_checkpointed(
      [function = std::move(function), arguments = std::move(arguments),
       first_result = std::weak_ptr(result)](const std::vector<at::Tensor>& tensors) mutable {
        auto call = arguments;
        internal::set_tensors(call, tensors);
        Result value = std::apply(function, call);
        auto values = internal::tensors_of(value);
        internal::clear_tensors(value);
        if (const auto first = first_result.lock()) first->emplace(std::move(value));
        return values;
      },
      inputs);
  internal::set_tensors(**result, outputs);
  return std::move(**result);
}

// Runs module->forward(args...) by call(), recomputed in backward if the policy of this thread
// selects the module.  `module`: a holder or a shared pointer.
template <typename Holder, typename... Args>
auto checkpoint_module(Holder module, Args... args) {
  static_assert(
      requires { module->children(); },
      "fsdp::checkpoint_module() takes a module's holder or a std::shared_ptr to it; "
      "fsdp::checkpoint() takes a function");
  auto forward = [module](auto&... values) mutable { return call(*module, values...); };
  using Result = std::decay_t<decltype(forward(args...))>;
  if (!internal::is_checkpointed(*module)) return Result(forward(args...));
  return checkpoint(std::move(forward), std::move(args)...);
}

}  // namespace fsdp
