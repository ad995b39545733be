// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/recorded_call.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

namespace fsdp::test::sim {
namespace {

bool has(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& one) { return one.is_same(tensor); });
}

// Returns a tensor of the same memory whose sizes can change without changing the other's.
at::Tensor with_own_sizes(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

at::Tensor with_own_values(const at::Tensor& tensor) {
  at::Tensor result = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

}  // namespace

void change_tensors(c10::IValue& value,
                    const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = change(tensor);
    value = tensors;
  } else if (value.isOptionalTensorList()) {
    auto tensors = value.toOptionalTensorList().copy();
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const std::optional<at::Tensor> tensor = tensors.get(k);
      if (tensor) tensors.set(k, change(*tensor));
    }
    value = tensors;
  }
}

RecordedCall::RecordedCall(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                           const std::vector<at::Tensor>& aliases,
                           const std::vector<at::Tensor>& outputs)
    : op_(op), arguments_(arguments) {
  std::size_t place = 0;
  for (c10::IValue& value : arguments_) {
    change_tensors(value, [&](const at::Tensor& tensor) {
      const std::size_t own_place = place++;
      if (!tensor.defined()) return tensor;
      if (has(outputs, tensor)) outputs_.emplace(tensor.unsafeGetTensorImpl(), own_place);
      return has(aliases, tensor) ? with_own_sizes(tensor) : with_own_values(tensor);
    });
  }
}

void RecordedCall::moves(const at::Tensor& made, const at::Tensor& to) {
  const auto output = outputs_.find(made.unsafeGetTensorImpl());
  if (output != outputs_.end()) {
    to_of_output_.emplace(output->second, to);
  } else {
    moves_.emplace(made.unsafeGetTensorImpl(), to);
  }
}

void RecordedCall::set_results(const torch::jit::Stack& results) {
  for (c10::IValue value : results) {
    change_tensors(value, [&](const at::Tensor& tensor) {
      const auto found = moves_.find(tensor.unsafeGetTensorImpl());
      to_.push_back(found == moves_.end() ? at::Tensor() : found->second);
      return tensor;
    });
  }
  moves_.clear();
  outputs_.clear();
}

void RecordedCall::run() const {
  torch::jit::Stack stack = arguments_;
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs;
  std::size_t place = 0;
  for (c10::IValue& value : stack) {
    change_tensors(value, [&](const at::Tensor& tensor) {
      const auto output = to_of_output_.find(place++);
      if (output == to_of_output_.end()) return with_own_sizes(tensor);
      outputs.emplace_back(at::empty({0}, tensor.options()), output->second);
      return outputs.back().first;
    });
  }
  op_.callBoxed(&stack);
  for (const auto& [made, to] : outputs) to.copy_(made);
  place = 0;
  for (c10::IValue& value : stack) {
    change_tensors(value, [&](const at::Tensor& tensor) {
      const at::Tensor& to = to_.at(place++);
      if (to.defined()) to.copy_(tensor);
      return tensor;
    });
  }
}

}  // namespace fsdp::test::sim
