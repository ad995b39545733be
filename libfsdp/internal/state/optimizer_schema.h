// SPDX-License-Identifier: Apache-2.0
// What the optimizers of torch::optim keep, in the words of Python's classes: every option that
// PyTorch 2.11 has in a param group, and per parameter a count of steps and some tensors of its
// shape.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/state_value.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace fsdp {

// What an optimizer keeps for one of its parameters.
struct ParamState {
  std::optional<std::int64_t> step;                         // where the class counts them
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // in Python's order; all defined

  bool empty() const noexcept { return !step && tensors.empty(); }
};

class OptimizerSchema {
 public:
  virtual ~OptimizerSchema() = default;

  virtual const char* name() const noexcept = 0;  // "AdamW"
  virtual bool counts_steps() const noexcept = 0;
  // Of all tensors it may keep for a parameter.
  virtual const std::vector<std::string>& tensor_names() const noexcept = 0;

  // A param group as Python has it, but for "params".
  virtual StateDict options_of(const torch::optim::OptimizerOptions& options) const = 0;
  // Takes what the class has of a param group; what the group lacks stays as it is.
  // Throws: c10::Error for what C++ cannot do (maximize), and for values of other kinds.
  virtual void set_options(torch::optim::OptimizerOptions& options,
                           const StateDict& group) const = 0;

  virtual ParamState state_of(const torch::optim::OptimizerParamState& state) const = 0;
  // Requires: a step where the class counts them, and names of tensor_names().
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state(
      const ParamState& state) const = 0;
  // Of a parameter that was never stepped; null where the class begins with none.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> initial_state(
      const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const = 0;
  // Names of the tensors that a step with these options takes for granted where there is a state.
  virtual std::vector<std::string> needed(const torch::optim::OptimizerOptions& options) const = 0;
};

// Lifetime: of the program.
// Throws: c10::Error naming the type of an optimizer that is none of SGD, Adam, AdamW, Adagrad,
// RMSprop.
const OptimizerSchema& schema_of(const torch::optim::Optimizer& optimizer);

// The optimizer's own state of a parameter; empty where it has none.
ParamState state_of(const OptimizerSchema& schema, const torch::optim::Optimizer& optimizer,
                    const at::Tensor& parameter);

// A step as Python's optimizers keep it: 0-dimensional, float32, on the CPU.
at::Tensor step_tensor(std::int64_t step);
// The count in a tensor, an integer or a float.
// Throws: c10::Error where it is no count.
std::int64_t step_in(const StateValue& value);

}  // namespace fsdp
