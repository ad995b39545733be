// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/freezing.h"

#include <algorithm>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

bool was_set(const Parameter& parameter) {
  return parameter.full.requires_grad() != parameter.trainable ||
         parameter.shard.requires_grad() != parameter.trainable;
}

bool flat_was_set(const Unit& unit, const FlatGroup& group) {
  return unit.sharding->flat && group.flat.requires_grad() == group.trained.empty();
}

// `trains(parameter)`: whether the parameter is to be trainable.
template <typename Trains>
void check_alike(const Unit& unit, const FlatGroup& group, const Trains& trains) {
  const Parameter* trainable = nullptr;
  const Parameter* frozen = nullptr;
  for (const Parameter* parameter : group.parameters)
    (trains(*parameter) ? trainable : frozen) = parameter;
  FSDP_CHECK(trainable == nullptr || frozen == nullptr, unit.quoted(),
             " mixes parameters that require a gradient ('", trainable->name(),
             "') with frozen ones ('", frozen->name(),
             "'), which one flat parameter cannot hold: set use_orig_params, wrap the frozen "
             "modules as units of their own, or freeze and thaw all parameters of a unit together");
}

}  // namespace

bool was_set(const Unit& unit) {
  return std::any_of(unit.groups.begin(), unit.groups.end(), [&](const FlatGroup& group) {
    return flat_was_set(unit, group) ||
           std::any_of(group.parameters.begin(), group.parameters.end(),
                       [](const Parameter* p) { return was_set(*p); });
  });
}

void check_flat(const Unit& unit) {
  if (!unit.sharding->flat) return;
  for (const FlatGroup& group : unit.groups)
    check_alike(unit, group, [](const Parameter& p) { return p.trainable; });
}

void follow_requires_grad(Unit& unit) {
  for (const FlatGroup& group : unit.groups) {
    if (unit.sharding->flat && !flat_was_set(unit, group))
      check_alike(unit, group, [](const Parameter& p) { return p.trainable != was_set(p); });
    for (const Parameter* parameter : group.parameters) {
      FSDP_CHECK(!(parameter->trainable && parameter->kept.defined() &&
                   (flat_was_set(unit, group) || was_set(*parameter))),
                 "parameter '", parameter->name(),
                 "' was frozen while its gradient is not reduced yet: its last backward ran "
                 "without synchronization (NoSync); run a backward outside of NoSync before it is "
                 "frozen, or drop the gradient with zero_grad()");
    }
  }
  for (FlatGroup& group : unit.groups) {
    const bool all = flat_was_set(unit, group);
    bool any = all;
    for (Parameter* parameter : group.parameters) {
      if (!all && !was_set(*parameter)) continue;
      any = true;
      parameter->trainable = !parameter->trainable;
      parameter->full.set_requires_grad(parameter->trainable);
      parameter->shard.set_requires_grad(parameter->trainable);
    }
    if (!any) continue;
    set_grad_offsets(group);
    group.flat.set_requires_grad(!group.trained.empty());
    group.grad_rows.clear();
    group.grad.reset();
    group.zeros.reset();
  }
}

}  // namespace fsdp::internal
