// SPDX-License-Identifier: Apache-2.0
// A call of an operator on device memory that is done again, with results at the same addresses.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace fsdp::test::sim {

// Replaces each tensor of a value, which is a tensor or a list of tensors, by change(tensor).
void change_tensors(c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change);

class RecordedCall {
 public:
  // `arguments`: on the CPU.  Tensors in `aliases` are device memory; tensors in `outputs` get
  // their size and memory from the operator; all others keep their present values.
  RecordedCall(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
               const std::vector<at::Tensor>& aliases, const std::vector<at::Tensor>& outputs);

  // Has run() copy what the call put into `made`, a result or an output, to the device memory of
  // which `to` is an alias.
  void moves(const at::Tensor& made, const at::Tensor& to);
  // Call once, after moves().
  void set_results(const torch::jit::Stack& results);

  void run() const;

 private:
  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  std::map<const c10::TensorImpl*, std::size_t> outputs_;  // places among the tensors of arguments
  std::map<const c10::TensorImpl*, at::Tensor> moves_;
  std::vector<at::Tensor> to_;  // by place among the tensors of results; undefined: nowhere
  std::map<std::size_t, at::Tensor> to_of_output_;
};

}  // namespace fsdp::test::sim
