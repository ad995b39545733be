// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/gradients.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/StorageImpl.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/observer.h"

namespace fsdp::internal {

// A stand-in without an owner is out of use: nothing happens when it is destroyed.
struct StandIn {
  Parameter* parameter = nullptr;  // of full.grad, or of shard.grad
  FlatGroup* group = nullptr;      // of flat.grad
  bool in_module = false;
};

namespace {

bool is_flat(const Parameter& parameter) {
  return parameter.unit->sharding->flat;
}

FlatGroup& group_of(const Parameter& parameter) {
  return parameter.unit->groups[parameter.group];
}

void take_off(at::Tensor& gradient) noexcept {
  if (StandIn* stand_in = stand_in_of(gradient)) {
    *stand_in = {};
    gradient.reset();
  }
}

void drop_kept(Parameter& parameter) noexcept {
  parameter.kept.reset();
  parameter.kept_sent = false;
}

bool any_kept(const FlatGroup& group) {
  return std::any_of(group.parameters.begin(), group.parameters.end(),
                     [](const Parameter* parameter) { return parameter->kept.defined(); });
}

// Zeroes the parameter's part of the reduced flat gradient, if there is one.
void zero_of_flat(FlatGroup& group, const Parameter& parameter) {
  const at::Tensor& gradient = group.flat.grad();
  const at::Tensor& reduced = stand_in_of(gradient) != nullptr ? group.aside : gradient;
  if (reduced.defined()) reduced.narrow(0, parameter.offset, parameter.reserved).zero_();
}

// Drops the parameter's part of the flat gradient; all of it once every part is dropped.
void drop_of_flat(Parameter& parameter) {
  FlatGroup& group = group_of(parameter);
  const bool all =
      std::none_of(group.parameters.begin(), group.parameters.end(), [&](const Parameter* other) {
        return other != &parameter && stand_in_of(other->full.grad()) != nullptr;
      });
  at::Tensor& flat = group.flat.mutable_grad();
  if (all) {
    take_off(flat);
    flat.reset();
    group.aside.reset();
    return;
  }
  const OwnWork own;
  zero_of_flat(group, parameter);
}

// Call when the last tensor of a stand-in is gone.
void dropped(const StandIn& stand_in) {
  if (stand_in.group != nullptr) {
    for (Parameter* parameter : stand_in.group->parameters) {
      drop_kept(*parameter);
      take_off(parameter->full.mutable_grad());
    }
    stand_in.group->aside.reset();
    return;
  }
  Parameter& parameter = *stand_in.parameter;
  drop_kept(parameter);
  if (!stand_in.in_module) {
    parameter.aside.reset();
    take_off(parameter.full.mutable_grad());
  } else if (is_flat(parameter)) {
    drop_of_flat(parameter);
  } else {
    take_off(parameter.shard.mutable_grad());
    parameter.shard.mutable_grad().reset();
    parameter.aside.reset();
  }
}

void drop(void* context) {
  const std::unique_ptr<StandIn> stand_in(static_cast<StandIn*>(context));
  if (stand_in->parameter != nullptr || stand_in->group != nullptr) dropped(*stand_in);
}

at::Tensor make_stand_in(const at::Tensor& like, const StandIn& stand_in) {
  const c10::InferenceMode no_inference(false);
  at::DataPtr pointer(nullptr, new StandIn(stand_in), &drop, like.device());
  return tensor_without_memory(std::move(pointer), like, like.scalar_type(), interception_key());
}

void stand_in_module(Parameter& parameter) {
  at::Tensor& gradient = parameter.full.mutable_grad();
  if (stand_in_of(gradient) != nullptr) return;
  const StandIn stand_in{&parameter, nullptr, true};
  if (parameter.spare.defined()) {
    *stand_in_of(parameter.spare) = stand_in;
    gradient = std::move(parameter.spare);
  } else {
    gradient = make_stand_in(parameter.home, stand_in);
  }
}

// Sets `reduced` aside to make room for a stand-in.
void set_aside(at::Tensor& reduced, at::Tensor& aside, const at::Tensor& like,
               const StandIn& stand_in) {
  if (stand_in_of(reduced) != nullptr) return;
  aside = std::move(reduced);
  reduced = make_stand_in(like, stand_in);
}

void put_back(at::Tensor& reduced, at::Tensor& aside) noexcept {
  if (stand_in_of(reduced) == nullptr) return;
  take_off(reduced);
  reduced = std::exchange(aside, {});
}

// Shows the reduced flat gradient (zeros if there is none), because nothing of it is unreduced any
// more.
void show_reduced(FlatGroup& group) {
  if (stand_in_of(group.flat.grad()) == nullptr) return;
  if (!group.aside.defined()) group.aside = at::zeros_like(group.flat);
  put_back(group.flat.mutable_grad(), group.aside);
}

// `kept`: whether a gradient is kept that is not reduced.
void clear(const at::Tensor& shard, bool set_to_none, bool kept) {
  at::Tensor& gradient = shard.mutable_grad();
  if (set_to_none)
    gradient.reset();
  else if (gradient.defined())
    gradient.zero_();
  else if (kept)
    gradient = at::zeros_like(shard);
}

}  // namespace

StandIn* stand_in_of(const at::Tensor& tensor) noexcept {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& pointer = tensor.unsafeGetTensorImpl()
                                   ->unsafe_storage()
                                   .unsafeGetStorageImpl()
                                   ->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &drop ? static_cast<StandIn*>(pointer.get_context()) : nullptr;
}

std::string refusal(const StandIn& stand_in, const std::string& operation) {
  if (stand_in.parameter == nullptr && stand_in.group == nullptr)
    return operation + " a gradient of an earlier step, which no longer exists";
  const Parameter& parameter =
      stand_in.group != nullptr ? *stand_in.group->parameters.front() : *stand_in.parameter;
  const std::string name = "the gradient of parameter '" + parameter.name() + "'";
  if (stand_in.in_module) {
    return operation + " " + name +
           " at the module's own parameter, but a sharded module has its gradients in its shards: "
           "make optimizers from sharded.parameters(), after the wrapping; clip with "
           "sharded.clip_grad_norm_(); read gradients at sharded.named_parameters(), or whole "
           "inside summon_full_params with with_grads";
  }
  return operation + " " + name +
         ", which is not reduced yet: its last backward ran without synchronization (NoSync); "
         "run a backward outside of NoSync before the gradient is clipped, scaled, read or "
         "stepped, or drop it with zero_grad()";
}

void make_zero(const StandIn& stand_in) {
  const OwnWork own;
  if (stand_in.parameter == nullptr && stand_in.group == nullptr) return;
  FlatGroup* group = stand_in.group;
  if (group == nullptr && is_flat(*stand_in.parameter)) {
    // Zeroes only this parameter's part of the shared gradient.
    Parameter& parameter = *stand_in.parameter;
    FlatGroup& flat = group_of(parameter);
    drop_kept(parameter);
    zero_of_flat(flat, parameter);
    if (!any_kept(flat)) show_reduced(flat);
    return;
  }
  if (group != nullptr) {
    for (Parameter* parameter : group->parameters) drop_kept(*parameter);
    if (group->aside.defined()) group->aside.zero_();
    show_reduced(*group);
    return;
  }
  Parameter& parameter = *stand_in.parameter;
  drop_kept(parameter);
  at::Tensor& gradient = parameter.shard.mutable_grad();
  if (stand_in_of(gradient) != nullptr) {
    if (!parameter.aside.defined()) parameter.aside = at::zeros_like(parameter.shard);
    put_back(gradient, parameter.aside);
  }
  if (gradient.defined()) gradient.zero_();
}

void show_gradients(Unit& unit) {
  for (FlatGroup& group : unit.groups) {
    if (unit.sharding->flat && any_kept(group))
      set_aside(group.flat.mutable_grad(), group.aside, group.flat, {nullptr, &group, false});
    for (Parameter* parameter : group.parameters) {
      if (!unit.sharding->flat && parameter->kept.defined())
        set_aside(parameter->shard.mutable_grad(), parameter->aside, parameter->shard,
                  {parameter, nullptr, false});
      const bool has =
          unit.sharding->flat ? group.flat.grad().defined() : parameter->shard.grad().defined();
      if (has)
        stand_in_module(*parameter);
      else
        take_off(parameter->full.mutable_grad());
    }
  }
}

void hide_from_module(Parameter& parameter) noexcept {
  at::Tensor& gradient = parameter.full.mutable_grad();
  StandIn* stand_in = stand_in_of(gradient);
  if (stand_in == nullptr) return;
  *stand_in = {};
  // Keeps the stand-in for the next time, if nobody else has it.
  if (gradient.use_count() == 1 && gradient.storage().use_count() == 1) parameter.spare = gradient;
  gradient.reset();
}

void check_dense(const Parameter& parameter, const at::Tensor& gradient) {
  FSDP_CHECK(gradient.layout() == at::kStrided, "parameter '", parameter.name(), "' has a ",
             gradient.layout(),
             " gradient, but only dense ones can be reduced; build its module "
             "with sparse(false), or ignore it with ignored_states");
}

void keep_gradient(Parameter& parameter) {
  at::Tensor& gradient = parameter.full.mutable_grad();
  if (!gradient.defined()) return;
  check_dense(parameter, gradient);
  const OwnWork own;
  if (parameter.kept.defined())
    parameter.kept.add_(gradient);
  else
    parameter.kept = gradient.detach();
  gradient.reset();
}

void take_back_reduced(FlatGroup& group) noexcept {
  const bool flat = group.sharding->flat;
  for (Parameter* parameter : group.parameters) {
    drop_kept(*parameter);
    if (!flat) put_back(parameter->shard.mutable_grad(), parameter->aside);
  }
  if (flat) put_back(group.flat.mutable_grad(), group.aside);
}

void zero_gradients(Unit& unit, bool set_to_none) {
  const OwnWork own;
  for (FlatGroup& group : unit.groups) {
    const bool any = any_kept(group);
    std::vector<bool> kept;
    for (const Parameter* parameter : group.parameters) kept.push_back(parameter->kept.defined());
    group.partial.reset();
    take_back_reduced(group);
    if (unit.sharding->flat) {
      clear(group.flat, set_to_none, any);
      continue;
    }
    for (std::size_t i = 0; i < group.parameters.size(); ++i)
      clear(group.parameters[i]->shard, set_to_none, kept[i]);
  }
  show_gradients(unit);
}

void require_reduced(const std::vector<Unit*>& units, const char* what) {
  for (const Unit* unit : units) {
    for (const FlatGroup& group : unit->groups)
      FSDP_CHECK(!group.partial.defined(), what, ": gradients of unit '", unit->name,
                 "' are not reduced over the copies yet: its last backward ran after "
                 "set_requires_all_reduce(false); first run a backward after "
                 "set_requires_all_reduce(true)");
    for (const auto& parameter : unit->parameters)
      FSDP_CHECK(!parameter->kept.defined(), what, ": the gradient of parameter '",
                 parameter->name(),
                 "' is not reduced yet: its last backward ran without synchronization (NoSync); "
                 "first run a backward outside of NoSync");
  }
}

void release_stand_ins(Unit& unit) noexcept {
  for (FlatGroup& group : unit.groups) {
    take_back_reduced(group);
    for (Parameter* parameter : group.parameters) {
      take_off(parameter->full.mutable_grad());
      parameter->spare.reset();
    }
  }
}

}  // namespace fsdp::internal
