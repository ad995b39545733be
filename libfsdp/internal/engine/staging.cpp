// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/gradients.h"

namespace fsdp::internal {
namespace {

bool exchanges_blocks(const FlatGroup& group) {
  return group.sharding->world_size() > 1 && !reduces_while_scattering(group.sharding->shard());
}

void make_staging(const EngineContext& context, FlatGroup& group) {
  if (group.staging.defined()) return;
  const std::int64_t ranks = group.sharding->world_size();
  const std::int64_t numel = block_numel(context, group);
  const std::int64_t bytes = ranks * numel * item_bytes(group.reduce_dtype);
  group.staging = context.buffers.take(bytes, Use::kGradients, Lane::kCompute)
                      .view(group.reduce_dtype)
                      .view({ranks, numel});
}

// Returns the columns of `parameter` in a group's staging buffer [W, block_numel], including those
// that only align the next parameter.
at::Tensor columns_of(const FlatGroup& group, const Parameter& parameter) {
  return group.staging.narrow(1, parameter.grad_offset, parameter.reserved);
}

// Copies on the CPU without operators, whose overhead is too much for many small gradients.
void copy_rows(const at::Tensor& gradient, const FlatGroup& group, const Parameter& parameter) {
  const ShardLayout& layout = parameter.layout;
  const auto item = static_cast<std::size_t>(item_bytes(group.reduce_dtype));
  const auto share = static_cast<std::size_t>(layout.padded_numel()) * item;
  const auto* source = static_cast<const char*>(gradient.const_data_ptr());
  auto* target = static_cast<char*>(group.staging.mutable_data_ptr()) +
                 static_cast<std::size_t>(parameter.grad_offset) * item;
  const auto reserved = static_cast<std::size_t>(parameter.reserved) * item;
  const auto stride = static_cast<std::size_t>(group.staging.size(1)) * item;
  for (int rank = 0; rank < layout.world_size; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto have = static_cast<std::size_t>(layout.numel_of(rank)) * item;
    if (have != 0) std::memcpy(target + r * stride, source + r * share, have);
    std::memset(target + r * stride + have, 0, reserved - have);
  }
}

// Copies by operators.  The columns must be zero where a rank has no elements.
void copy_rows_by_operators(const at::Tensor& gradient, const FlatGroup& group,
                            const Parameter& parameter) {
  const ShardLayout& layout = parameter.layout;
  const at::Tensor columns = columns_of(group, parameter);
  const at::Tensor flat = gradient.reshape({-1});
  const std::int64_t share = layout.padded_numel();
  const std::int64_t whole = share == 0 ? 0 : flat.numel() / share;  // ranks with full shares
  if (whole != 0)
    columns.narrow(0, 0, whole)
        .narrow(1, 0, share)
        .copy_(flat.narrow(0, 0, whole * share).view({whole, share}));
  const std::int64_t rest = flat.numel() - whole * share;
  if (rest != 0)
    columns.select(0, whole).narrow(0, 0, rest).copy_(flat.narrow(0, whole * share, rest));
}

void add_rows(const at::Tensor& gradient, const FlatGroup& group, const Parameter& parameter) {
  const ShardLayout& layout = parameter.layout;
  const at::Tensor flat = gradient.reshape({-1});
  const at::Tensor columns = columns_of(group, parameter);
  for (int rank = 0; rank < layout.world_size; ++rank) {
    const std::int64_t have = layout.numel_of(rank);
    if (have != 0)
      columns.select(0, rank)
          .narrow(0, 0, have)
          .add_(flat.narrow(0, rank * layout.padded_numel(), have));
  }
}

// Takes the gradient of a parameter that is to be staged; undefined if there is none.
at::Tensor take_gradient(Parameter& parameter) {
  const at::Tensor& present = parameter.full.grad();
  const bool with_kept = parameter.kept.defined() && !parameter.kept_sent;
  if (!with_kept && (!present.defined() || stand_in_of(present) != nullptr)) return {};
  hide_from_module(parameter);
  at::Tensor made = std::exchange(parameter.full.mutable_grad(), {});
  if (made.defined()) check_dense(parameter, made);
  // Kept gradients grow as they would without sharding, in case this backward throws.
  if (parameter.kept.defined() && made.defined()) parameter.kept.add_(made);
  if (!with_kept) return made;
  parameter.kept_sent = true;
  return parameter.kept;
}

void stage(const EngineContext& context, Parameter& parameter, const at::Tensor& gradient) {
  FlatGroup& group = parameter.unit->groups[parameter.group];
  const bool on_cpu = context.streams.on_cpu();
  if (!group.staging.defined()) {
    make_staging(context, group);
    if (!on_cpu) group.staging.zero_();
  }
  if (parameter.staged) {
    // Used in several backwards inside one: the earlier gradient is staged, and waits to be
    // reduced.
    add_rows(gradient, group, parameter);
  } else if (on_cpu && gradient.scalar_type() == group.reduce_dtype) {
    copy_rows(gradient.contiguous(), group, parameter);
  } else {
    if (on_cpu) columns_of(group, parameter).zero_();
    copy_rows_by_operators(gradient, group, parameter);
  }
  parameter.staged = true;
}

// Stages gradients of all trained parameters of a group by one operator, which CUDA has a kernel
// for.  `gradients`: in the order of the parameters.
void stage_together(const EngineContext& context, FlatGroup& group,
                    const std::vector<at::Tensor>& gradients) {
  make_staging(context, group);
  const std::int64_t ranks = group.sharding->world_size();
  // The operator's chunks have the layout of shards: equal ones, and zeros where rows are missing.
  std::vector<at::Tensor> parts;
  std::int64_t most_zeros = trailer_numel(context, group);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Parameter& parameter = *group.trained[i];
    most_zeros = std::max(most_zeros, parameter.reserved - parameter.layout.padded_numel());
  }
  const c10::TensorOptions options = gradients.front().options().requires_grad(false);
  if (!group.zeros.defined() || group.zeros.numel() < ranks * most_zeros ||
      group.zeros.scalar_type() != gradients.front().scalar_type())
    group.zeros = at::zeros({ranks * most_zeros}, options);
  const auto add_zeros = [&](std::int64_t columns) {
    if (columns != 0)
      parts.push_back(group.zeros.narrow(0, 0, ranks * columns).view({ranks, columns}));
  };
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Parameter& parameter = *group.trained[i];
    const ShardLayout& layout = parameter.layout;
    if (layout.padded_numel() != 0)
      parts.push_back(gradients[i].reshape({layout.rows, layout.row_numel}));
    add_zeros(parameter.reserved - layout.padded_numel());
    parameter.staged = true;
  }
  add_zeros(trailer_numel(context, group));
  if (!parts.empty()) at::_chunk_cat_out(group.staging, parts, 0, ranks);
}

}  // namespace

std::int64_t trailer_numel(const EngineContext& context, const FlatGroup& group) {
  return exchanges_blocks(group) || context.streams.on_cpu()
             ? kTrailerBytes / item_bytes(group.reduce_dtype)
             : 0;
}

std::int64_t block_numel(const EngineContext& context, const FlatGroup& group) {
  return group.grad_numel + trailer_numel(context, group);
}

void stage_gradient(const EngineContext& context, Parameter& parameter) {
  const OwnWork own;
  const at::Tensor gradient = take_gradient(parameter);
  if (gradient.defined()) stage(context, parameter, gradient);
}

void stage_gradients(const EngineContext& context, Unit& unit) {
  const OwnWork own;
  for (FlatGroup& group : unit.groups) {
    std::vector<at::Tensor> gradients;
    bool together = !context.streams.on_cpu() && !group.staging.defined();
    for (Parameter* parameter : group.trained) {
      gradients.push_back(take_gradient(*parameter));
      together = together && gradients.back().defined() &&
                 gradients.back().scalar_type() == gradients.front().scalar_type();
    }
    if (gradients.empty()) continue;
    if (together) {
      stage_together(context, group, gradients);
      continue;
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) stage(context, *group.trained[i], gradients[i]);
    }
  }
}

void complete_staging(const EngineContext& context, const Unit& unit, FlatGroup& group) {
  for (Parameter* parameter : group.trained) {
    if (context.streams.on_cpu() && !parameter->staged) columns_of(group, *parameter).zero_();
    parameter->staged = false;
  }
  const std::int64_t numel = trailer_numel(context, group);
  if (!context.streams.on_cpu() || numel == 0) return;
  const at::Tensor trailer = group.staging.narrow(1, group.grad_numel, numel);
  for (std::int64_t rank = 0; rank < trailer.size(0); ++rank)
    std::memcpy(trailer.select(0, rank).mutable_data_ptr(), &unit.id, sizeof(unit.id));
}

}  // namespace fsdp::internal
