// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/published.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/Functions.h>

#include "libfsdp/internal/engine/gradients.h"

namespace fsdp::internal {
namespace {

c10::TensorOptions grad_options(const EngineContext& context, const FlatGroup& group) {
  const bool is_offloaded = group.local.is_cpu() && !context.streams.on_cpu();
  return group.local.options()
      .dtype(group.grad_dtype())
      .requires_grad(false)
      .pinned_memory(is_offloaded);
}

// Returns whether somebody else has the gradients, or views of them.
bool is_shared(const FlatGroup& group) {
  return group.grad.use_count() > 1 ||
         group.grad.storage().use_count() > 1 + group.grad_rows.size() ||
         std::any_of(group.grad_rows.begin(), group.grad_rows.end(),
                     [](const at::Tensor& rows) { return rows.use_count() > 1; });
}

std::vector<at::Tensor> rows_in(const at::Tensor& gradients, const FlatGroup& group) {
  std::vector<at::Tensor> result;
  for (const Parameter* parameter : group.trained)
    result.push_back(gradients.narrow(0, parameter->grad_offset, parameter->shard.numel())
                         .view(parameter->shard.sizes()));
  return result;
}

}  // namespace

bool accumulates(const FlatGroup& group) {
  if (group.sharding->flat) return group.flat.grad().defined();
  return std::any_of(group.trained.begin(), group.trained.end(),
                     [](const Parameter* p) { return p->shard.grad().defined(); });
}

at::Tensor& memory_of_gradients(const EngineContext& context, FlatGroup& group) {
  if (!group.grad.defined() || is_shared(group)) {
    group.grad_rows.clear();
    group.grad = at::empty({group.grad_numel}, grad_options(context, group));
  }
  return group.grad;
}

void show_grad(FlatGroup& group) {
  if (group.sharding->flat) {
    group.flat.mutable_grad() = group.grad.detach();
    return;
  }
  if (group.grad_rows.empty()) group.grad_rows = rows_in(group.grad, group);
  for (std::size_t i = 0; i < group.grad_rows.size(); ++i)
    group.trained[i]->shard.mutable_grad() = group.grad_rows[i];
}

void add_to_gradients(const EngineContext& context, FlatGroup& group, const at::Tensor& gradients) {
  if (group.sharding->flat) {
    group.flat.mutable_grad().add_(gradients);
    return;
  }
  std::vector<at::Tensor> rows = rows_in(gradients, group);
  std::vector<at::Tensor> present;
  std::vector<at::Tensor> more;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    at::Tensor& gradient = group.trained[i]->shard.mutable_grad();
    if (!gradient.defined()) {
      gradient = rows[i].to(grad_options(context, group).dtype(), /*non_blocking=*/false,
                            /*copy=*/true);
      continue;
    }
    present.push_back(gradient);
    more.push_back(std::move(rows[i]));
  }
  if (!present.empty()) at::_foreach_add_(present, more);
}

void publish(const EngineContext& context, FlatGroup& group, const at::Tensor& reduced,
             std::vector<Arriving>& arriving) {
  take_back_reduced(group);
  const bool adds = accumulates(group);
  const bool is_offloaded = group.local.is_cpu() && !reduced.is_cpu();
  if (adds && !is_offloaded) return add_to_gradients(context, group, reduced);
  at::Tensor to = adds ? at::empty({group.grad_numel}, grad_options(context, group))
                       : memory_of_gradients(context, group);
  if (is_offloaded && reduced.scalar_type() != to.scalar_type()) {
    // Otherwise the host would cast.
    const auto bytes = static_cast<std::int64_t>(to.nbytes());
    at::Tensor cast = context.buffers.take(bytes, Use::kGradients, Lane::kReduce);
    to.copy_(cast.view(to.scalar_type()).copy_(reduced), /*non_blocking=*/true);
    context.buffers.give(std::move(cast), Use::kGradients, Lane::kReduce);
  } else {
    to.copy_(reduced, /*non_blocking=*/true);
  }
  if (adds)
    arriving.push_back({&group, std::move(to)});
  else
    show_grad(group);
}

}  // namespace fsdp::internal
