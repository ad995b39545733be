// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/unit_call.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {
namespace {

// Returns the first sharded parameter in the module; null if there is none.
const Parameter* first_parameter(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (const Parameter* const parameter = parameter_of(item.value())) return parameter;
  }
  for (const auto& child : module.children()) {
    if (const Parameter* const parameter = first_parameter(*child)) return parameter;
  }
  return nullptr;
}

}  // namespace

at::Tensor prepared_tensor(const at::Tensor& tensor, const InputCast& cast) {
  if (!tensor.defined()) return tensor;
  at::Tensor result = tensor;
  if (cast.device && result.device() != *cast.device)
    result = result.to(*cast.device, /*non_blocking=*/true);
  // Not a detached copy: a loss may want the gradient of an input.
  if (cast.dtype && result.is_floating_point()) result = result.to(*cast.dtype);
  return result;
}

const at::Tensor& PreparedTensors::original_of(const at::Tensor& tensor, std::size_t place) const {
  if (place < after_.size() && after_[place].is_same(tensor)) return before_[place];
  const auto found = std::find_if(after_.begin(), after_.end(), [&](const at::Tensor& prepared) {
    return prepared.is_same(tensor);
  });
  return found == after_.end() ? tensor : before_[static_cast<std::size_t>(found - after_.begin())];
}

UnitCall::UnitCall(const torch::nn::Module& module) {
  const Parameter* const parameter = first_parameter(module);
  Unit* unit = parameter == nullptr ? nullptr : parameter->unit;
  while (unit != nullptr && unit->module != &module) unit = unit->parent;
  if (unit == nullptr) return;
  unit_ = unit;
  was_called_ = std::exchange(unit->is_called, true);
  const Sharding& sharding = *unit->sharding;
  if (sharding.casts_inputs) inputs_.dtype = sharding.param_dtype;
  outputs_.dtype = sharding.output_dtype;
}

UnitCall::~UnitCall() {
  if (unit_ != nullptr) unit_->is_called = was_called_;
}

}  // namespace fsdp::internal
