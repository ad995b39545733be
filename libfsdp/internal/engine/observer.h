// SPDX-License-Identifier: Apache-2.0
// Sees the arguments of operators that take sharded parameters, before the kernel runs.
//
// Note [casts]: PyTorch casts what goes into a unit's module and what comes out of it.  A C++
// module tells neither, so casts are made at the operators that take the unit's parameters:
//  - of a unit that mixed precision leaves alone, inputs are raised to the dtype of its parameters,
//    and results lowered again;
//  - of a unit that casts its inputs, those that are neither parameters nor buffers get its
//    param_dtype, except those of pointwise operators, which promote dtypes themselves;
//  - results get the output_dtype of a unit whose module has no submodules.
// A module that is called by fsdp::call() gets and returns what PyTorch's would.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

namespace c10 {
class OperatorHandle;
}

namespace fsdp::internal {
struct Parameter;
struct Unit;
}  // namespace fsdp::internal

namespace fsdp::internal {

// One call of an operator.  While it lives, the units of its parameter arguments (or views of
// parameters) are unsharded.
class ObservedCall {
 public:
  // Gathers, and casts arguments: see Note [casts].
  // Throws: what Engine::use throws; if the operator changes a parameter's shape or storage, or
  // touches the stand-in of a gradient (see gradients.h).  It does not run then.
  ObservedCall(const c10::OperatorHandle& operation, torch::jit::Stack& stack);
  ~ObservedCall();
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

  // True if the stack holds the results already, and the operator must not run.
  bool answered() const noexcept { return answered_; }
  // Call after the operator has run: `stack` ends with its results.  Copies parameters that the
  // operator wrote to their shards.  Makes the graph of the results notice a parameter that changes
  // before its backward.
  // Throws: what Engine::written throws.
  void ran(torch::jit::Stack& stack);

 private:
  struct Used {
    Unit* unit;
    bool own;
  };

  void use(const std::vector<Unit*>& units);
  void end_uses() noexcept;
  bool read_shards(torch::jit::Stack& stack);
  void cast_inputs(const c10::OperatorHandle& operation, torch::jit::Stack& stack);
  // Casts arguments for which `wanted(tensor)` is true.  Returns whether there were any.
  template <typename Wanted>
  bool cast_each(torch::jit::Stack& stack, c10::ScalarType to, const Wanted& wanted);

  const c10::FunctionSchema& schema_;
  std::vector<Unit*> units_;
  std::vector<Parameter*> written_;
  std::vector<Used> used_;                    // the first unit of each engine
  std::optional<c10::ScalarType> raised_;     // the dtype of the results to cast; none: all
  std::optional<c10::ScalarType> result_in_;  // the dtype that results are cast to
  bool answered_ = false;
};

}  // namespace fsdp::internal
