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

// The norm of what several ranks hold, from that of what each holds.
class NormOverRanks {
 public:
  NormOverRanks(const std::shared_ptr<ProcessGroup>& group, double p, const at::Tensor& like)
      : group_(group), p_(p), like_(like) {}

  at::Tensor of(const Gradients& gradients) const {
    at::Tensor total = part_of(gradients.sharded);
    if (group_->size() > 1) {
      total = total.contiguous();
      all_reduce(group_, total, op(), "norm of gradients").wait();
    }
    const at::Tensor whole = part_of(gradients.whole);
    if (!std::isinf(p_)) return (total + whole).pow(1 / p_);
    return p_ > 0 ? at::maximum(total, whole) : at::minimum(total, whole);
  }

 private:
  ReduceOp op() const {
    if (!std::isinf(p_)) return ReduceOp::kSum;
    return p_ > 0 ? ReduceOp::kMax : ReduceOp::kMin;
  }
  // What nothing adds to the parts of others.
  double neutral() const {
    return std::isinf(p_) && p_ < 0 ? std::numeric_limits<double>::infinity() : 0;
  }
  at::Tensor part_of(const std::vector<at::Tensor>& gradients) const {
    if (gradients.empty()) return at::full({}, neutral(), like_.options());
    const at::Tensor norm = norm_of(gradients, p_, like_);
    return std::isinf(p_) ? norm : norm.pow(p_);
  }

  const std::shared_ptr<ProcessGroup>& group_;
  const double p_;
  const at::Tensor& like_;
};

// The gradient of a parameter, if it has one.
struct Counted {
  at::Tensor gradient;
  bool whole = false;  // each rank holds it
};

// Returns the number of parameters whose gradient is not zero: what PyTorch takes for the norm with
// p = 0, which is not that of the gradients as one vector.
at::Tensor number_of_nonzero(const std::shared_ptr<ProcessGroup>& group,
                             const std::vector<Counted>& parameters, const at::Tensor& like) {
  std::vector<at::Tensor> sharded;
  std::vector<at::Tensor> whole;
  const at::Tensor zero = at::zeros({}, like.options());
  for (const Counted& parameter : parameters) {
    const at::Tensor count = parameter.gradient.defined()
                                 ? at::count_nonzero(parameter.gradient).to(like.options())
                                 : zero;
    (parameter.whole ? whole : sharded).push_back(count);
  }
  at::Tensor total = zero;
  if (!sharded.empty()) {
    at::Tensor counts = at::stack(sharded);
    all_reduce(group, counts, ReduceOp::kSum, "norm of gradients").wait();
    total = counts.ne(0).sum();
  }
  if (!whole.empty()) total = total + at::stack(whole).ne(0).sum();
  return total.to(like.scalar_type());
}

}  // namespace

at::Tensor ShardedModule::clip_grad_norm_(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  // Runs on every rank, whatever rows it has.
  engine_->require_reduced("clip_grad_norm_");
  const auto& shard_group = engine_->shard_group();
  Gradients gradients;
  std::vector<Counted> counted;
  auto dtype = c10::ScalarType::Undefined;
  for (const auto& [name, parameter] : named_parameters()) {
    const at::Tensor& gradient = parameter.grad();
    bool whole = shard_group->size() == 1;
    for (const NamedTensor& ignored : unmanaged_)
      whole = whole || ignored.second.is_same(parameter);
    counted.push_back({gradient, whole});
    if (!gradient.defined()) continue;
    dtype = dtype == c10::ScalarType::Undefined ? gradient.scalar_type()
                                                : c10::promoteTypes(dtype, gradient.scalar_type());
    if (gradient.numel() == 0) continue;
    (whole ? gradients.whole : gradients.sharded).push_back(gradient);
  }
  const bool none = dtype == c10::ScalarType::Undefined;
  if (none) dtype = c10::kFloat;
  const c10::ScalarType computed =
      c10::toRealValueType(dtype) == c10::kDouble ? c10::kDouble : c10::kFloat;
  const at::Tensor like =
      at::zeros({}, at::TensorOptions().dtype(computed).device(engine_->streams().device()));

  at::Tensor total = norm_type == 0 ? number_of_nonzero(shard_group, counted, like)
                                    : NormOverRanks(shard_group, norm_type, like).of(gradients);
  if (none) total = at::zeros({}, like.options());
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
