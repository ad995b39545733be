// SPDX-License-Identifier: Apache-2.0
// ShardedModule::clip_grad_norm_: the norm of all gradients taken as one vector, though each rank
// holds only some of its elements.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp {
using namespace internal;
namespace {

// The nonempty gradients of this rank: those that the ranks of the sharding group hold together,
// and those that each of them holds whole.
struct Gradients {
  std::vector<at::Tensor> sharded;
  std::vector<at::Tensor> whole;
};

// Returns gradients that one operator may take together.
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

// Returns a 0-dimensional tensor, in float32, or in float64 if gradients are.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double p, const at::Tensor& like) {
  std::vector<at::Tensor> norms;
  for (const auto& list : by_device_and_dtype(gradients)) {
    const auto dtype = list.front().is_complex() ? std::nullopt : std::optional(like.scalar_type());
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(list, p, dtype)), p);
    norms.push_back(norm.to(like.device(), like.scalar_type(), /*non_blocking=*/true));
  }
  if (norms.empty()) return at::zeros({}, like.options());
  return norms.size() == 1 ? norms.front() : at::linalg_vector_norm(at::stack(norms), p);
}

}  // namespace

at::Tensor ShardedModule::clip_grad_norm_(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  // Runs on every rank, whatever rows it has.
  engine_->require_reduced("clip_grad_norm_");
  const auto& shard_group = engine_->shard_group();
  Gradients gradients;
  auto dtype = c10::ScalarType::Undefined;
  for (const auto& [name, parameter] : named_parameters()) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    dtype = dtype == c10::ScalarType::Undefined ? gradient.scalar_type()
                                                : c10::promoteTypes(dtype, gradient.scalar_type());
    if (gradient.numel() == 0) continue;
    bool whole = shard_group->size() == 1;
    for (const NamedTensor& ignored : unmanaged_)
      whole = whole || ignored.second.is_same(parameter);
    (whole ? gradients.whole : gradients.sharded).push_back(gradient);
  }
  if (dtype == c10::ScalarType::Undefined) dtype = c10::kFloat;
  const c10::ScalarType computed =
      c10::toRealValueType(dtype) == c10::kDouble ? c10::kDouble : c10::kFloat;
  const at::Tensor like =
      at::zeros({}, at::TensorOptions().dtype(computed).device(engine_->streams().device()));

  const bool largest = std::isinf(norm_type);
  at::Tensor total = norm_of(gradients.sharded, norm_type, like);
  if (shard_group->size() > 1) {
    if (!largest) total = total.pow(norm_type);
    total = total.contiguous();
    all_reduce(shard_group, total, largest ? ReduceOp::kMax : ReduceOp::kSum, "norm of gradients")
        .wait();
    if (!largest) total = total.pow(1 / norm_type);
  }
  const at::Tensor whole = norm_of(gradients.whole, norm_type, like);
  total = largest ? at::maximum(total, whole)
                  : (total.pow(norm_type) + whole.pow(norm_type)).pow(1 / norm_type);
  // The small number avoids a division by zero.
  const at::Tensor scale = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const auto& all : {gradients.sharded, gradients.whole}) {
    for (const auto& list : by_device_and_dtype(all))
      at::_foreach_mul_(
          list, scale.to(list.front().device(), c10::toRealValueType(list.front().scalar_type())));
  }
  return total.to(c10::toRealValueType(dtype));
}

}  // namespace fsdp
