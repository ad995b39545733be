// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/state/optimizer_schema.h"

#include <cmath>
#include <functional>
#include <tuple>
#include <typeinfo>

#include <ATen/Functions.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

namespace optim = torch::optim;

using Betas = std::tuple<double, double>;

StateValue to_value(double value) {
  return value;
}
StateValue to_value(bool value) {
  return value;
}
StateValue to_value(const Betas& betas) {
  return StateTuple{{std::get<0>(betas), std::get<1>(betas)}};
}

void take(double& into, const StateValue& value) {
  into = value.number();
}
void take(bool& into, const StateValue& value) {
  into = value.number() != 0;
}
void take(Betas& into, const StateValue& value) {
  const StateList* items = value.as_list();
  if (const StateTuple* tuple = value.as_tuple()) items = &tuple->items;
  FSDP_CHECK(items != nullptr && items->size() == 2, "expected two numbers, found ",
             value.kind_name());
  into = {(*items)[0].number(), (*items)[1].number()};
}

// One key of Python's param groups.
template <typename Options>
struct Option {
  const char* name;
  // Both are empty if only Python has the option.
  std::function<StateValue(Options&)> get;
  std::function<void(Options&, const StateValue&)> set;
  StateValue fixed;            // the default of Python's class
  bool must_be_fixed = false;  // other values need features that C++ lacks
};

// `member`: the function that TORCH_ARG makes, which returns a reference to the option.
template <typename Options, typename T>
Option<Options> option(const char* name, T& (Options::*member)() noexcept) {
  return {name, [member](Options& options) { return to_value((options.*member)()); },
          [member](Options& options, const StateValue& value) { take((options.*member)(), value); },
          StateValue(), false};
}

// A switch in Python that changes how a step is computed, but not its result.
template <typename Options>
Option<Options> ignored(const char* name, StateValue value = {}) {
  return {name, nullptr, nullptr, std::move(value), false};
}

template <typename Options>
Option<Options> fixed(const char* name, bool value) {
  return {name, nullptr, nullptr, value, true};
}

template <typename Options, typename State>
struct Buffer {
  std::string name;
  at::Tensor& (State::*member)() noexcept;
  std::function<bool(const Options&)> needed;
};

template <typename Options>
bool always(const Options&) {
  return true;
}

template <typename Options, typename State>
class Schema : public OptimizerSchema {
 public:
  using Step = std::int64_t& (State::*)() noexcept;  // null: the class counts no steps

  Schema(const char* name, std::vector<Option<Options>> options, Step step,
         std::vector<Buffer<Options, State>> buffers)
      : name_(name),
        options_(std::move(options)),
        step_(std::move(step)),
        buffers_(std::move(buffers)) {
    for (const auto& buffer : buffers_) names_.push_back(buffer.name);
  }

  const char* name() const noexcept override { return name_; }
  bool counts_steps() const noexcept override { return step_ != nullptr; }
  const std::vector<std::string>& tensor_names() const noexcept override { return names_; }

  StateDict options_of(const optim::OptimizerOptions& options) const override {
    // TORCH_ARG returns references only from non-const objects.
    Options own = dynamic_cast<const Options&>(options);
    StateDict result;
    for (const auto& option : options_)
      result.set(option.name, option.get ? option.get(own) : option.fixed);
    return result;
  }

  void set_options(optim::OptimizerOptions& options, const StateDict& group) const override {
    auto& own = dynamic_cast<Options&>(options);
    for (const auto& option : options_) {
      const StateValue* const value = group.find(option.name);
      if (value == nullptr) continue;
      if (option.set) {
        set(own, option, *value);
      } else if (option.must_be_fixed) {
        const bool wanted = !value->is_none() && value->number() != 0;
        FSDP_CHECK(wanted == *option.fixed.as_bool(), name_, " in C++ does not support ",
                   option.name, "=", wanted ? "True" : "False");
      }
    }
  }

  ParamState state_of(const optim::OptimizerParamState& state) const override {
    State own = dynamic_cast<const State&>(state);
    ParamState result;
    if (step_ != nullptr) result.step = (own.*step_)();
    if (const auto* const counted = dynamic_cast<const HasDeviceStep*>(&state))
      result.step = counted->count();
    for (const auto& buffer : buffers_) {
      const at::Tensor& tensor = (own.*buffer.member)();
      if (tensor.defined()) result.tensors.emplace_back(buffer.name, tensor);
    }
    return result;
  }

  std::unique_ptr<optim::OptimizerParamState> make_state(const ParamState& state) const override {
    auto result = std::make_unique<State>();
    if (step_ != nullptr) ((*result).*step_)() = state.step.value();
    for (const auto& [name, tensor] : state.tensors) {
      for (const auto& buffer : buffers_) {
        if (buffer.name == name) ((*result).*buffer.member)() = tensor;
      }
    }
    return result;
  }

  std::unique_ptr<optim::OptimizerParamState> initial_state(
      const at::Tensor& parameter, const optim::OptimizerOptions& options) const override {
    if constexpr (std::is_same_v<State, optim::AdagradParamState>) {
      auto result = std::make_unique<State>();
      result->sum(at::full_like(parameter.detach(),
                                dynamic_cast<const Options&>(options).initial_accumulator_value()));
      return result;
    } else {
      return nullptr;
    }
  }

  std::vector<std::string> needed(const optim::OptimizerOptions& options) const override {
    std::vector<std::string> result;
    for (const auto& buffer : buffers_) {
      if (buffer.needed(dynamic_cast<const Options&>(options))) result.push_back(buffer.name);
    }
    return result;
  }

 private:
  void set(Options& own, const Option<Options>& option, const StateValue& value) const {
    try {
      option.set(own, value);
    } catch (const c10::Error& error) {
      FSDP_CHECK(false, "option ", option.name, " of ", name_, ": ",
                 error.what_without_backtrace());
    }
  }

  const char* name_;
  const std::vector<Option<Options>> options_;
  const Step step_;
  const std::vector<Buffer<Options, State>> buffers_;
  std::vector<std::string> names_;
};

const OptimizerSchema& sgd() {
  using O = optim::SGDOptions;
  using S = optim::SGDParamState;
  static const Schema<O, S> schema(
      "SGD",
      {option("lr", &O::lr), option("momentum", &O::momentum), option("dampening", &O::dampening),
       option("weight_decay", &O::weight_decay), option("nesterov", &O::nesterov),
       fixed<O>("maximize", false), ignored<O>("foreach"), ignored<O>("differentiable", false),
       ignored<O>("fused")},
      nullptr, {{"momentum_buffer", &S::momentum_buffer, always<O>}});
  return schema;
}

template <typename O, typename S>
Schema<O, S> adam_schema(const char* name, bool decoupled) {
  return Schema<O, S>(
      name,
      {option("lr", &O::lr), option("betas", &O::betas), option("eps", &O::eps),
       option("weight_decay", &O::weight_decay), option("amsgrad", &O::amsgrad),
       fixed<O>("maximize", false), ignored<O>("foreach"), ignored<O>("capturable", false),
       ignored<O>("differentiable", false), ignored<O>("fused"),
       fixed<O>("decoupled_weight_decay", decoupled)},
      &S::step,
      {{"exp_avg", &S::exp_avg, always<O>},
       {"exp_avg_sq", &S::exp_avg_sq, always<O>},
       {"max_exp_avg_sq", &S::max_exp_avg_sq, [](const O& o) { return o.amsgrad(); }}});
}

const OptimizerSchema& adam() {
  static const auto schema = adam_schema<optim::AdamOptions, optim::AdamParamState>("Adam", false);
  return schema;
}

const OptimizerSchema& adamw() {
  static const auto schema =
      adam_schema<optim::AdamWOptions, optim::AdamWParamState>("AdamW", true);
  return schema;
}

const OptimizerSchema& adagrad() {
  using O = optim::AdagradOptions;
  using S = optim::AdagradParamState;
  static const Schema<O, S> schema(
      "Adagrad",
      {option("lr", &O::lr), option("lr_decay", &O::lr_decay), option("eps", &O::eps),
       option("weight_decay", &O::weight_decay),
       option("initial_accumulator_value", &O::initial_accumulator_value), ignored<O>("foreach"),
       fixed<O>("maximize", false), ignored<O>("differentiable", false), ignored<O>("fused")},
      &S::step, {{"sum", &S::sum, always<O>}});
  return schema;
}

const OptimizerSchema& rmsprop() {
  using O = optim::RMSpropOptions;
  using S = optim::RMSpropParamState;
  static const Schema<O, S> schema(
      "RMSprop",
      {option("lr", &O::lr), option("momentum", &O::momentum), option("alpha", &O::alpha),
       option("eps", &O::eps), option("centered", &O::centered),
       option("weight_decay", &O::weight_decay), ignored<O>("capturable", false),
       ignored<O>("foreach"), fixed<O>("maximize", false), ignored<O>("differentiable", false)},
      &S::step,
      {{"square_avg", &S::square_avg, always<O>},
       {"momentum_buffer", &S::momentum_buffer, [](const O& o) { return o.momentum() > 0; }},
       {"grad_avg", &S::grad_avg, [](const O& o) { return o.centered(); }}});
  return schema;
}

}  // namespace

const OptimizerSchema& schema_of(const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) return adamw();
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) return adam();
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) return sgd();
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) return adagrad();
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) return rmsprop();
  FSDP_CHECK(false, "state dicts of ", c10::demangle(typeid(optimizer).name()),
             " are not supported; use SGD, Adam, AdamW, Adagrad or RMSprop");
}

ParamState state_of(const OptimizerSchema& schema, const optim::Optimizer& optimizer,
                    const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || found->second == nullptr) return {};
  return schema.state_of(*found->second);
}

at::Tensor step_tensor(std::int64_t step) {
  return at::scalar_tensor(step, at::kFloat);
}

std::int64_t step_in(const StateValue& value) {
  const double step = value.number();
  FSDP_CHECK(step >= 0 && step == std::floor(step) && step < 9e15,
             "expected a count of steps, found ", step);
  return static_cast<std::int64_t>(step);
}

}  // namespace fsdp::internal
