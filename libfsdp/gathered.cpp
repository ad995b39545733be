// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/gathered.h"

#include <algorithm>

#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp {
using namespace internal;

Gathered::Gathered(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& tensor : parameters) {
    const Parameter* const parameter = parameter_of(tensor);
    if (parameter == nullptr || parameter->unit->always_unsharded) continue;
    Unit* const unit = parameter->unit;
    const bool known =
        std::any_of(pins_.begin(), pins_.end(), [&](const Pin& pin) { return pin.unit == unit; });
    if (known) continue;
    Engine& engine = *unit->engine;
    engine.end_use(engine.use({unit}));
    engine.pin(*unit, 1);
    pins_.push_back({engine.life(), unit});
  }
}

Gathered::~Gathered() {
  for (const Pin& pin : pins_) {
    const auto life = pin.life.lock();
    if (life && life->engine != nullptr) life->engine->pin(*pin.unit, -1);
  }
}

}  // namespace fsdp
