// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/observer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/units/unit.h"
#include "libfsdp/meta_device.h"

namespace fsdp::internal {
namespace {

// Reused by every call, to save an allocation each time: an operator seldom takes parameters of
// more than one unit.
thread_local std::vector<Unit*> spare_units;

// Calls f(tensor) for every tensor of an argument.
template <typename F>
void each_tensor_of(const c10::IValue& argument, const F& f) {
  if (argument.isTensor()) {
    f(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) {
      if (element.isTensor())
        f(element.toTensor());
      else if (!element.isNone())
        break;  // a list of other things
    }
  }
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Runs when a backward comes to an operator that took parameters.
class SameValues final : public torch::autograd::FunctionPreHook {
 public:
  explicit SameValues(const std::vector<Unit*>& units) {
    for (Unit* unit : units) saved_.push_back({unit->engine->life(), unit, unit->version()});
  }

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    for (const Saved& saved : saved_) {
      if (engine_of(saved.life) == nullptr) continue;
      FSDP_CHECK(saved.unit->version() == saved.version, changed_since_forward(*saved.unit));
    }
    return gradients;
  }

 private:
  struct Saved {
    std::weak_ptr<EngineLife> life;
    const Unit* unit;
    std::uint32_t version;
  };
  std::vector<Saved> saved_;
};

void watch(const at::Tensor& result, const std::vector<Unit*>& units,
           const torch::autograd::Node*& last) {
  // The operators that take a view of a parameter use the parameter.
  if (!result.defined() || !result.requires_grad() || parameter_of(result) != nullptr) return;
  const auto& node = result.grad_fn();
  if (node == nullptr || node.get() == last) return;
  last = node.get();
  node->add_pre_hook(std::make_unique<SameValues>(units));
}

// Operators update some buffers, such as the statistics of a batch norm, without saying so in their
// schemas.
bool is_buffer(const Unit& unit, const at::Tensor& tensor) {
  const std::vector<at::Tensor> buffers = unit.module->buffers();
  return std::any_of(buffers.begin(), buffers.end(),
                     [&](const at::Tensor& buffer) { return buffer.is_same(tensor); });
}

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

ObservedCall::ObservedCall(const c10::OperatorHandle& operation, torch::jit::Stack& stack)
    : schema_(operation.schema()) {
  const auto& schema = schema_;
  const std::size_t count = schema.arguments().size();
  const auto arguments = torch::jit::last(stack, count);
  units_.swap(spare_units);
  units_.clear();
  const Parameter* reshaped = nullptr;
  const StandIn* stand_in = nullptr;
  at::Tensor held;
  for (std::size_t i = 0; i < count; ++i) {
    each_tensor_of(arguments[i], [&](const at::Tensor& tensor) {
      if (Parameter* const parameter = parameter_of(tensor)) {
        if (std::find(units_.begin(), units_.end(), parameter->unit) == units_.end())
          units_.push_back(parameter->unit);
        if (!writes(schema.arguments()[i])) return;
        // On a view such an operator changes only the view itself.
        if (!operation.hasTag(at::Tag::inplace_view))
          written_.push_back(parameter);
        else if (tensor.is_same(parameter->full))
          reshaped = parameter;
      } else if (const StandIn* found = stand_in_of(tensor)) {
        stand_in = found;
        held = tensor;
      }
    });
  }
  if (stand_in != nullptr) {
    const std::string& name = schema.name();
    const bool zeroes = name == "aten::zero_";
    FSDP_CHECK(zeroes || name == "aten::detach" || name == "aten::detach_",
               refusal(*stand_in, "'" + name + "' reads or writes"));
    if (zeroes) make_zero(*stand_in);
    torch::jit::drop(stack, count);
    torch::jit::push(stack, std::move(held));
    answered_ = true;
    return;
  }
  if (units_.empty() || read_shards(stack)) return;
  try {
    // Outside of forward, the error of use() comes first.
    use(units_);
    FSDP_CHECK(reshaped == nullptr, "'", schema.name(), "' changes parameter '", reshaped->name(),
               "' itself, not its values, inside forward or backward of its sharded module, whose "
               "shards have its shape: call it on a view of the parameter (data(), t()), or before "
               "the module is wrapped");
    cast_inputs(operation, stack);
  } catch (...) {
    end_uses();
    throw;
  }
}

// Replaces parameters by their shards in the operator's arguments, if these are whole and no
// gradient is asked for.  Returns whether it did.
bool ObservedCall::read_shards(torch::jit::Stack& stack) {
  if (at::GradMode::is_enabled()) return false;
  for (const Unit* unit : units_) {
    if (!unit->engine->reads_shards(*unit)) return false;
  }
  const auto shard_of = [](const at::Tensor& tensor) {
    const Parameter* const parameter = parameter_of(tensor);
    return parameter == nullptr || !tensor.is_same(parameter->full)
               ? tensor
               : parameter->shard.detach().view(parameter->layout.shape);
  };
  const c10::impl::ExcludeDispatchKeyGuard without_key(kInterceptionKey);
  const std::size_t count = schema_.arguments().size();
  std::vector<c10::IValue> shown(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  for (c10::IValue& argument : shown) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      argument = shard_of(argument.toTensor());
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> tensors = argument.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = shard_of(tensor);
      argument = tensors;
    }
  }
  // Views of a parameter cannot be read elsewhere.
  for (const c10::IValue& argument : shown) {
    bool all = true;
    each_tensor_of(argument,
                   [&](const at::Tensor& tensor) { all = all && parameter_of(tensor) == nullptr; });
    if (!all) return false;
  }
  std::move(shown.begin(), shown.end(), stack.end() - static_cast<std::ptrdiff_t>(count));
  units_.clear();
  written_.clear();
  return true;
}

void ObservedCall::end_uses() noexcept {
  for (const Used& used : used_) used.unit->engine->end_use(used.own);
  used_.clear();
}

ObservedCall::~ObservedCall() {
  end_uses();
  units_.clear();
  units_.swap(spare_units);
}

// Expects parameters of one engine: an operator on parameters of two sharded modules is rare.
void ObservedCall::use(const std::vector<Unit*>& units) {
  Engine* const engine = units.front()->engine;
  const auto is_its = [&](const Unit* unit) { return unit->engine == engine; };
  if (std::all_of(units.begin(), units.end(), is_its)) {
    used_.push_back({units.front(), engine->use(units)});
    return;
  }
  std::vector<Unit*> rest = units;
  while (!rest.empty()) {
    const Engine* const next = rest.front()->engine;
    const auto others = std::stable_partition(
        rest.begin(), rest.end(), [&](const Unit* unit) { return unit->engine == next; });
    const std::vector<Unit*> its(rest.begin(), others);
    use(its);
    rest.erase(rest.begin(), others);
  }
}

template <typename Wanted>
bool ObservedCall::cast_each(torch::jit::Stack& stack, c10::ScalarType to, const Wanted& wanted) {
  const c10::impl::ExcludeDispatchKeyGuard without_key(kInterceptionKey);
  const std::size_t count = schema_.arguments().size();
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(stack, i, count);
    if (writes(schema_.arguments()[i])) continue;
    if (argument.isTensor() && argument.toTensor().defined() && wanted(argument.toTensor())) {
      argument = argument.toTensor().to(to);
      any = true;
    } else if (argument.isTensorList()) {
      // Recurrent layers pass hidden states in a list beside their weights.
      auto tensors = argument.toTensorVector();
      for (at::Tensor& tensor : tensors) {
        if (!tensor.defined() || !wanted(tensor)) continue;
        tensor = tensor.to(to);
        any = true;
      }
      argument = tensors;
    }
  }
  return any;
}

void ObservedCall::cast_inputs(const c10::OperatorHandle& operation, torch::jit::Stack& stack) {
  // A backward that recomputes a forward records gradients.
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (units_.size() > 1 || (in_backward && !at::GradMode::is_enabled())) return;
  const Unit& unit = *units_.front();
  const Sharding& sharding = *unit.sharding;
  if (sharding.output_dtype && !unit.is_called) {
    FSDP_CHECK(unit.module->children().empty(), "unit '", unit.name,
               "' has an output_dtype, but its module has submodules, so its outputs cannot be "
               "found: call the module through fsdp::call(module, inputs...)");
    result_in_ = sharding.output_dtype;
  }
  if (!sharding.param_dtype) return;
  if (!unit.mixed_precision) {
    const auto low = *sharding.param_dtype;
    const auto high = unit.groups.front().dtype;
    if (low == high) return;
    const auto is_low = [&](const at::Tensor& tensor) { return tensor.scalar_type() == low; };
    if (!cast_each(stack, high, is_low)) return;
    raised_ = high;
    result_in_ = low;
  } else if (sharding.casts_inputs && !operation.hasTag(at::Tag::pointwise)) {
    const auto to = *sharding.param_dtype;
    cast_each(stack, to, [&](const at::Tensor& tensor) {
      return tensor.is_floating_point() && tensor.scalar_type() != to &&
             parameter_of(tensor) == nullptr && !is_buffer(unit, tensor);
    });
  }
}

void ObservedCall::ran(torch::jit::Stack& stack) {
  if (units_.empty()) return;
  for (Parameter* parameter : written_)
    parameter->unit->engine->written(*parameter, schema_.name());
  const std::size_t count = schema_.returns().size();
  if (result_in_) {
    const c10::impl::ExcludeDispatchKeyGuard without_key(kInterceptionKey);
    for (std::size_t i = 0; i < count; ++i) {
      c10::IValue& result = torch::jit::peek(stack, i, count);
      // A parameter that was written, or a view of one, is not an output.
      if (result.isTensor() && result.toTensor().defined() &&
          (raised_ ? result.toTensor().scalar_type() == *raised_
                   : result.toTensor().is_floating_point()) &&
          parameter_of(result.toTensor()) == nullptr)
        result = result.toTensor().to(*result_in_);
    }
  }
  if (!at::GradMode::is_enabled()) return;
  const torch::autograd::Node* last_watched = nullptr;
  for (const c10::IValue& result : torch::jit::last(stack, count))
    each_tensor_of(result, [&](const at::Tensor& tensor) { watch(tensor, units_, last_watched); });
}

// The key is left out while the kernel runs: operators that the kernel calls need no observation,
// because everything that it may read was unsharded before.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (meta_factories_active()) send_factory_to_meta(op.schema(), *stack);
  ObservedCall call(op, *stack);
  if (call.answered()) return;
  {
    const c10::impl::ExcludeDispatchKeyGuard without_key(kInterceptionKey);
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptionKey), stack);
  }
  call.ran(*stack);
}

}  // namespace

c10::DispatchKey interception_key() noexcept {
  return kInterceptionKey;
}

}  // namespace fsdp::internal

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fsdp::internal::intercept>());
}
