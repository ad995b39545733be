// SPDX-License-Identifier: Apache-2.0
// Describes the state of torch::optim's optimizers in terms of Python's classes: every option that
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

namespace fsdp::internal {

// The state that an optimizer keeps for one of its parameters.
struct ParamState {
  std::optional<std::int64_t> step;                         // if the class counts them
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // in Python's order; all defined

  bool empty() const noexcept { return !step && tensors.empty(); }
};

// Counts the steps of a parameter on its device, which a graph can increment; the host's count
// beside it may be older.  A second base class for states, beside
// torch::optim::OptimizerParamState.
class HasDeviceStep {
 public:
  // Returns the count; waits for the device.
  std::int64_t count() const { return static_cast<std::int64_t>(device_step.item<float>()); }

  at::Tensor device_step;  // one float32, on the parameter's device

 protected:
  explicit HasDeviceStep(at::Tensor step) : device_step(std::move(step)) {}
  HasDeviceStep(const HasDeviceStep&) = default;
  HasDeviceStep& operator=(const HasDeviceStep&) = default;
  ~HasDeviceStep() = default;
};

class OptimizerSchema {
 public:
  virtual ~OptimizerSchema() = default;

  virtual const char* name() const noexcept = 0;  // "AdamW"
  virtual bool counts_steps() const noexcept = 0;
  // Names all tensors that the class may keep for a parameter.
  virtual const std::vector<std::string>& tensor_names() const noexcept = 0;

  // Returns a param group as Python has it, without "params".
  virtual StateDict options_of(const torch::optim::OptimizerOptions& options) const = 0;
  // Sets the options that the class has in a param group; options missing in the group stay as they
  // are.  Throws: c10::Error for features that C++ lacks (maximize), and for values of other kinds.
  virtual void set_options(torch::optim::OptimizerOptions& options,
                           const StateDict& group) const = 0;

  virtual ParamState state_of(const torch::optim::OptimizerParamState& state) const = 0;
  // Requires: a step if the class counts them, and names of tensor_names().
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state(
      const ParamState& state) const = 0;
  // Returns the state of a parameter that was never stepped; null if the class starts with none.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> initial_state(
      const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const = 0;
  // Names the tensors that a step with these options requires if there is a state.
  virtual std::vector<std::string> needed(const torch::optim::OptimizerOptions& options) const = 0;
};

// Lifetime: of the program.
// Throws: c10::Error naming the type of an optimizer that is not SGD, Adam, AdamW, Adagrad or
// RMSprop.
const OptimizerSchema& schema_of(const torch::optim::Optimizer& optimizer);

// Returns the optimizer's own state of a parameter; empty if it has none.
ParamState state_of(const OptimizerSchema& schema, const torch::optim::Optimizer& optimizer,
                    const at::Tensor& parameter);

// Returns a step as Python's optimizers keep it: 0-dimensional, float32, on the CPU.
at::Tensor step_tensor(std::int64_t step);
// Returns the state as Python's state dicts have it, with value(name, tensor) of each tensor.
template <typename ValueOf>
StateDict values_of(const ParamState& state, const ValueOf& value) {
  StateDict result;
  if (state.step) result.set("step", step_tensor(*state.step));
  for (const auto& [name, tensor] : state.tensors) result.set(name, value(name, tensor));
  return result;
}
// Returns the count in a tensor, an integer or a float.
// Throws: c10::Error if it is not a count.
std::int64_t step_in(const StateValue& value);

}  // namespace fsdp::internal
