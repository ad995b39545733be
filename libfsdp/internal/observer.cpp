// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/observer.h"

#include <algorithm>
#include <vector>

#include "libfsdp/internal/engine.h"
#include "libfsdp/internal/unit.h"

namespace fsdp::internal {
namespace {

void add(const at::Tensor& tensor, std::vector<Unit*>& units) {
  const Parameter* parameter = parameter_of(tensor);
  if (parameter == nullptr) return;
  if (std::find(units.begin(), units.end(), parameter->unit) == units.end())
    units.push_back(parameter->unit);
}

}  // namespace

void observe(c10::ArrayRef<c10::IValue> arguments) {
  // Lent out for the call: an operator seldom takes parameters of more than one unit, and a fresh
  // vector for each would be an allocation for each.
  static thread_local std::vector<Unit*> kept;
  std::vector<Unit*> units;
  units.swap(kept);
  units.clear();
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      add(argument.toTensor(), units);
    } else if (argument.isList()) {
      for (const c10::IValue& element : argument.toListRef()) {
        if (element.isTensor())
          add(element.toTensor(), units);
        else if (!element.isNone())
          break;  // a list of something else
      }
    }
  }
  while (!units.empty()) {
    // Of one engine at a time; an operator on parameters of two sharded modules is rare.
    Engine* engine = units.front()->engine;
    const auto others = std::stable_partition(
        units.begin(), units.end(), [&](const Unit* unit) { return unit->engine == engine; });
    const std::vector<Unit*> rest(others, units.end());
    units.erase(others, units.end());
    engine->use(units);
    units = rest;
  }
  units.swap(kept);
}

}  // namespace fsdp::internal
