// SPDX-License-Identifier: Apache-2.0
// Sees the arguments of operators that take sharded parameters, before the kernel runs.
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
  // Gathers.  Raises arguments of a unit that mixed precision leaves alone to its dtype.
  // Throws: what Engine::use throws; if the operator changes a parameter's shape or storage, or
  // touches the stand-in of a gradient (see gradients.h).  It does not run then.
  ObservedCall(const c10::OperatorHandle& operation, torch::jit::Stack& stack);
  ~ObservedCall();
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

  // True if the stack holds the results already, and the operator must not run.
  bool answered() const noexcept { return answered_; }
  // The operator has run: `stack` ends with its results.  Parameters that it wrote reach their
  // shards; the graph of its results will notice if a parameter changes before its backward.
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
  void raise(torch::jit::Stack& stack);

  const c10::FunctionSchema& schema_;
  std::vector<Unit*> units_;
  std::vector<Parameter*> written_;
  std::vector<Used> used_;                  // the first unit of each engine
  std::optional<c10::ScalarType> lowered_;  // the dtype of arguments before they were raised
  bool answered_ = false;
};

}  // namespace fsdp::internal
