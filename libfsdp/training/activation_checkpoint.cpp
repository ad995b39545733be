// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/activation_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local std::shared_ptr<const CheckpointPolicy> thread_policy;

// The generator states of the CPU and of the devices that some tensors are on.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Tensor>& tensors) : devices_{c10::Device(at::kCPU)} {
    for (const auto& tensor : tensors) {
      const bool is_known =
          !tensor.defined() || tensor.is_meta() ||
          std::find(devices_.begin(), devices_.end(), tensor.device()) != devices_.end();
      if (!is_known) devices_.push_back(tensor.device());
    }
    capture();
  }

  // Returns the states that the same generators have now.
  RandomState now() const {
    RandomState result = *this;
    result.capture();
    return result;
  }

  void restore() const {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      auto generator = at::globalContext().defaultGenerator(devices_[i]);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(states_[i]);
    }
  }

 private:
  void capture() {
    states_.clear();
    for (const auto& device : devices_) {
      auto generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      states_.push_back(generator.get_state());
    }
  }

  std::vector<c10::Device> devices_;
  std::vector<at::Tensor> states_;
};

// The state of autocast on each type of devices.
class AutocastState {
 public:
  AutocastState() {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const auto type = internal::kAutocastTypes[i];
      devices_[i] = {at::autocast::is_autocast_enabled(type),
                     at::autocast::get_autocast_dtype(type)};
    }
  }

  void restore() const {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const auto type = internal::kAutocastTypes[i];
      at::autocast::set_autocast_enabled(type, devices_[i].first);
      at::autocast::set_autocast_dtype(type, devices_[i].second);
    }
  }

 private:
  // Whether it is enabled, and its dtype.
  std::array<std::pair<bool, at::ScalarType>, internal::kAutocastTypes.size()> devices_;
};

// Autocast caches the casts of weights while its scope lasts.  A cast made while no graph was
// recorded has no gradient, so code that records must not find it.
class NoAutocastCache {
 public:
  NoAutocastCache() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(was_enabled_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  const bool was_enabled_;
};

// Puts a state in force and restores the old one at the end.
template <typename State>
class Scoped {
 public:
  Scoped(const State& state, State outer) : outer_(std::move(outer)) { state.restore(); }
  ~Scoped() { outer_.restore(); }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  const State outer_;
};

// The data that the graph keeps of one call.
struct Recomputation : torch::CustomClassHolder {
  Recomputation(internal::FlatFunction function_to_call, const std::vector<at::Tensor>& inputs)
      : function(std::move(function_to_call)),
        random(inputs),
        policy(thread_policy),
        input_count(inputs.size()) {}

  internal::FlatFunction function;
  const RandomState random;
  const AutocastState autocast;
  const std::shared_ptr<const CheckpointPolicy> policy;
  // Positions of the graph's tensors in the function's list; other tensors of the list are
  // undefined.
  const std::size_t input_count;
  std::size_t output_count = 0;
  std::vector<std::size_t> input_places;
  std::vector<std::size_t> output_places;
};

using RecomputationPtr = c10::intrusive_ptr<Recomputation>;

constexpr const char* kRecomputation = "recomputation";

// Inputs of the call that require a gradient become leaves of a separate graph.
std::vector<at::Tensor> detached_inputs(const Recomputation& call, const variable_list& saved) {
  std::vector<at::Tensor> inputs(call.input_count);
  for (std::size_t i = 0; i < call.input_places.size(); ++i) {
    inputs[call.input_places[i]] = saved[i].detach().set_requires_grad(saved[i].requires_grad());
  }
  return inputs;
}

std::vector<at::Tensor> recompute(Recomputation& call, const std::vector<at::Tensor>& inputs) {
  const Scoped<RandomState> random(call.random, call.random.now());
  const Scoped<AutocastState> autocast(call.autocast, AutocastState());
  const NoAutocastCache no_cache;
  const CheckpointPolicyScope policy(call.policy);
  const at::AutoGradMode record(true);
  return call.function(inputs);
}

struct FirstRun {
  const RecomputationPtr& call;
  const std::vector<at::Tensor>& inputs;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `variables`: the defined inputs, and one that requires a gradient if no other does.
  static variable_list forward(AutogradContext* context, const FirstRun& run,
                               at::TensorList variables) {
    const auto& call = run.call;
    const NoAutocastCache no_cache;
    auto outputs = call->function(run.inputs);
    context->saved_data[kRecomputation] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    context->save_for_backward(variables.vec());
    call->output_count = outputs.size();
    variable_list defined;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) continue;
      call->output_places.push_back(i);
      defined.push_back(outputs[i]);
    }
    return defined;
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_grads) {
    const auto call = c10::static_intrusive_pointer_cast<Recomputation>(
        context->saved_data.at(kRecomputation).toCapsule());
    FSDP_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
               "checkpoint: expected backward() without inputs, found autograd::grad or backward "
               "with inputs, which checkpoints do not support: call backward() without inputs, or "
               "remove the checkpoint");
    FSDP_CHECK(!at::GradMode::is_enabled(),
               "checkpoint: expected a backward without create_graph, found one with it: "
               "checkpoints do not support gradients of gradients; remove the checkpoint");
    const auto saved = context->get_saved_variables();
    const auto inputs = detached_inputs(*call, saved);
    const auto outputs = recompute(*call, inputs);
    FSDP_CHECK(outputs.size() == call->output_count, "checkpoint: expected the ",
               call->output_count, " tensors of the first run from the second, found ",
               outputs.size(), ": the function must do the same both times");
    variable_list roots;
    variable_list grads;
    for (std::size_t i = 0; i < call->output_places.size(); ++i) {
      const auto& output = outputs[call->output_places[i]];
      if (!output_grads[i].defined() || !output.defined() || !output.requires_grad()) continue;
      roots.push_back(output);
      grads.push_back(output_grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, grads);

    // The first gradient belongs to `run`, which is not a tensor.
    variable_list result(1 + saved.size());
    for (std::size_t i = 0; i < call->input_places.size(); ++i) {
      result[1 + i] = inputs[call->input_places[i]].grad();
    }
    return result;
  }
};

}  // namespace

CheckpointPolicyScope::CheckpointPolicyScope(std::shared_ptr<const CheckpointPolicy> policy)
    : outer_(std::exchange(thread_policy, std::move(policy))) {}

CheckpointPolicyScope::~CheckpointPolicyScope() {
  thread_policy = std::move(outer_);
}

const std::shared_ptr<const CheckpointPolicy>& checkpoint_policy() noexcept {
  return thread_policy;
}

namespace internal {

bool is_checkpointed(const torch::nn::Module& module) {
  return thread_policy != nullptr && *thread_policy && (*thread_policy)(module);
}

std::vector<at::Tensor> run_checkpointed(FlatFunction function,
                                         const std::vector<at::Tensor>& inputs) {
  const auto call = c10::make_intrusive<Recomputation>(std::move(function), inputs);
  variable_list variables;
  bool requires_grad = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    call->input_places.push_back(i);
    variables.push_back(inputs[i]);
    requires_grad = requires_grad || inputs[i].requires_grad();
  }
  // Parameters are not inputs.  Without an input that requires a gradient, backward would skip
  // this.
  if (!requires_grad) variables.push_back(at::empty({}).set_requires_grad(true));

  const auto defined = CheckpointFunction::apply(FirstRun{call, inputs}, at::TensorList(variables));
  std::vector<at::Tensor> outputs(call->output_count);
  for (std::size_t i = 0; i < defined.size(); ++i) outputs[call->output_places[i]] = defined[i];
  return outputs;
}

}  // namespace internal
}  // namespace fsdp
