// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/unit_call.h"

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
