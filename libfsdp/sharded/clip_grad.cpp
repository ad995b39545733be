// SPDX-License-Identifier: Apache-2.0
// ShardedModule::clip_grad_norm_: the norm of all gradients taken as one vector, though each rank
// holds only some of its elements.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/gradients.h"

namespace fsdp {
using namespace internal;
namespace {

// The groups over which a parameter is divided: the one over which it is sharded, and those of its
// placements.  Empty: each rank holds all of it.
using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

struct Held {
  Groups groups;
  std::vector<at::Tensor> of_parameters;  // a gradient for each parameter; undefined if it has none

  // Returns the gradients that have elements here.
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> result;
    for (const at::Tensor& gradient : of_parameters) {
      if (gradient.defined() && gradient.numel() != 0) result.push_back(gradient);
    }
    return result;
  }
};

// Returns the list of all groups, which is the same on all ranks, whatever gradients they have.
std::vector<Held> held_by_groups(const ShardedModule& model) {
  std::vector<Held> result;
  const auto place_of = [&](const Groups& groups) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (result[i].groups == groups) return i;
    }
    result.push_back({groups, {}});
    return result.size() - 1;
  };
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  for (const Unit* unit : model.units()) {
    const auto& shard = unit->sharding->mesh.shard;
    const Groups sharded = shard->size() > 1 ? Groups{shard} : Groups();
    const std::size_t of_unit = place_of(sharded);
    for (const FlatGroup& flat : unit->groups)
      places.emplace(flat.flat.unsafeGetTensorImpl(), of_unit);
    for (const auto& parameter : unit->parameters) {
      Groups groups = sharded;
      for (const Placement& placement : parameter->placed.placements) {
        if (placement.mesh.group()->size() > 1) groups.push_back(placement.mesh.group());
      }
      places.emplace(parameter->shard.unsafeGetTensorImpl(),
                     groups.size() == sharded.size() ? of_unit : place_of(groups));
    }
  }
  for (const at::Tensor& parameter : model.parameters()) {
    const auto found = places.find(parameter.unsafeGetTensorImpl());
    const std::size_t place = found == places.end() ? place_of({}) : found->second;
    result[place].of_parameters.push_back(parameter.grad());
  }
  std::erase_if(result, [](const Held& held) { return held.of_parameters.empty(); });
  return result;
}

// Groups gradients that one operator may take together.
std::vector<std::vector<at::Tensor>> by_device_and_dtype(const std::vector<at::Tensor>& gradients) {
  std::vector<std::vector<at::Tensor>> result;
  for (const at::Tensor& gradient : gradients) {
    const auto found = std::find_if(result.begin(), result.end(), [&](const auto& list) {
      return list.front().device() == gradient.device() &&
             list.front().scalar_type() == gradient.scalar_type();
    });
    (found == result.end() ? result.emplace_back() : *found).push_back(gradient.detach());
  }
  return result;
}

// Returns a 0-dimensional tensor, in the dtype of `like`.  Requires: gradients.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double p, const at::Tensor& like) {
  std::vector<at::Tensor> norms;
  for (const auto& list : by_device_and_dtype(gradients)) {
    const auto dtype = list.front().is_complex() ? std::nullopt : std::optional(like.scalar_type());
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(list, p, dtype)), p);
    norms.push_back(norm.to(like.device(), like.scalar_type(), /*non_blocking=*/true));
  }
  return norms.size() == 1 ? norms.front() : at::linalg_vector_norm(at::stack(norms), p);
}

// Returns the norm of all gradients, from those that each rank holds.
at::Tensor norm_over_ranks(const std::vector<Held>& all, double p, const at::Tensor& like) {
  const bool infinite = std::isinf(p);
  const ReduceOp op = !infinite ? ReduceOp::kSum : p > 0 ? ReduceOp::kMax : ReduceOp::kMin;
  // The norm of no gradients, which changes nothing when the ranks' norms are combined.
  const double neutral = infinite && p < 0 ? std::numeric_limits<double>::infinity() : 0;
  at::Tensor total;
  for (const Held& held : all) {
    const std::vector<at::Tensor> gradients = held.gradients();
    at::Tensor part =
        gradients.empty() ? at::full({}, neutral, like.options()) : norm_of(gradients, p, like);
    if (!gradients.empty() && !infinite) part = part.pow(p);
    if (!held.groups.empty()) part = part.contiguous();
    for (const auto& group : held.groups) all_reduce(group, part, op, "norm of gradients").wait();
    if (!total.defined())
      total = part;
    else if (!infinite)
      total = total + part;
    else
      total = p > 0 ? at::maximum(total, part) : at::minimum(total, part);
  }
  return infinite ? total : total.pow(1 / p);
}

// Returns the number of parameters whose gradient is not zero: PyTorch's norm for p = 0, which is
// not the norm of the gradients as one vector.
at::Tensor number_of_nonzero(const std::vector<Held>& all, const at::Tensor& like) {
  const at::Tensor zero = at::zeros({}, like.options());
  at::Tensor total = zero;
  for (const Held& held : all) {
    std::vector<at::Tensor> counts;
    for (const at::Tensor& gradient : held.of_parameters)
      counts.push_back(gradient.defined() ? at::count_nonzero(gradient).to(like.options()) : zero);
    at::Tensor counted = at::stack(counts);
    for (const auto& group : held.groups)
      all_reduce(group, counted, ReduceOp::kSum, "norm of gradients").wait();
    total = total + counted.ne(0).sum();
  }
  return total.to(like.scalar_type());
}

}  // namespace

at::Tensor ShardedModule::clip_grad_norm_(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  require_reduced(units(), "clip_grad_norm_");
  engine_of(*this).require_finished("clip_grad_norm_");
  const std::vector<Held> all = held_by_groups(*this);
  auto dtype = c10::ScalarType::Undefined;
  for (const Held& held : all) {
    for (const at::Tensor& gradient : held.of_parameters) {
      if (!gradient.defined()) continue;
      dtype = dtype == c10::ScalarType::Undefined
                  ? gradient.scalar_type()
                  : c10::promoteTypes(dtype, gradient.scalar_type());
    }
  }
  const bool none = dtype == c10::ScalarType::Undefined;
  if (none) dtype = c10::kFloat;
  const c10::ScalarType computed =
      c10::toRealValueType(dtype) == c10::kDouble ? c10::kDouble : c10::kFloat;
  const at::Tensor like = at::zeros(
      {}, at::TensorOptions().dtype(computed).device(engine_of(*this).streams().device()));

  // Runs on every rank, whatever rows it has.
  at::Tensor total =
      norm_type == 0 ? number_of_nonzero(all, like) : norm_over_ranks(all, norm_type, like);
  if (none) total = at::zeros({}, like.options());
  // The small number avoids a division by zero.
  const at::Tensor scale = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const Held& held : all) {
    for (const auto& list : by_device_and_dtype(held.gradients()))
      at::_foreach_mul_(
          list, scale.to(list.front().device(), c10::toRealValueType(list.front().scalar_type())));
  }
  return total.to(c10::toRealValueType(dtype));
}

}  // namespace fsdp
