// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/gathered.h"

#include <algorithm>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/gather_rows.h"
#include "libfsdp/internal/units/shard_tensor.h"
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
    if (Engine* const engine = engine_of(pin.life)) engine->pin(*pin.unit, -1);
  }
}

at::Tensor full_tensor(const at::Tensor& shard, const at::Tensor& values) {
  const ShardKind kind = shard_kind(shard);
  FSDP_CHECK(kind != ShardKind::kFlat,
             "full_tensor: a flat tensor holds several parameters: set use_orig_params");
  if (kind == ShardKind::kNone) return values;
  const Engine* const engine = engine_of(owner_of(shard));
  FSDP_CHECK(engine != nullptr,
             "full_tensor: the sharded module of the parameter has been destroyed");
  FSDP_CHECK(values.sizes() == shard.sizes(), "full_tensor: expected values of the shape ",
             shard.sizes(), " of the shard, found ", values.sizes());
  for (const auto& unit : engine->units()) {
    for (const auto& parameter : unit->parameters) {
      if (!parameter->shard.is_same(shard)) continue;
      const OwnWork own;
      const at::Tensor whole =
          gather_rows(*parameter, values.detach(), "all-gather of '" + parameter->name() + "'");
      return whole.is_alias_of(values) ? whole.clone() : whole;
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

at::Tensor full_tensor(const at::Tensor& shard) {
  return full_tensor(shard, shard);
}

}  // namespace fsdp
