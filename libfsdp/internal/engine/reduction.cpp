// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/reduction.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/own_work.h"

namespace fsdp::internal {
namespace {

std::int64_t item_bytes(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// The unit's id follows every group's rows in a rank's block, like the trailer of a gather.
std::int64_t trailer_numel(c10::ScalarType dtype) {
  return kTrailerBytes / item_bytes(dtype);
}

std::int64_t block_numel(const FlatGroup& group) {
  return group.trainable_numel + trailer_numel(group.reduce_dtype);
}

bool is_16_bit(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

std::string title(const std::vector<Reduction::Part>& parts) {
  const std::string& name = parts.front().first->name;
  std::string text = "gradient reduction of ";
  text += name.empty() ? "the root unit" : name;
  if (parts.size() > 1) text += " and " + std::to_string(parts.size() - 1) + " more";
  return text;
}

// Returns the columns of `parameter` in a group's staging buffer [W, block_numel], including those
// that only align the next parameter.
at::Tensor columns_of(const FlatGroup& group, const Parameter& parameter) {
  return group.staging.narrow(1, parameter.offset, parameter.reserved);
}

// Copies on the CPU without operators, because small gradients are many.
void copy_rows(const at::Tensor& gradient, const FlatGroup& group, const Parameter& parameter) {
  const ShardLayout& layout = parameter.layout;
  const auto item = static_cast<std::size_t>(item_bytes(group.reduce_dtype));
  const auto share = static_cast<std::size_t>(layout.padded_numel()) * item;
  const auto* source = static_cast<const char*>(gradient.const_data_ptr());
  auto* target = static_cast<char*>(group.staging.mutable_data_ptr()) +
                 static_cast<std::size_t>(parameter.offset) * item;
  const auto reserved = static_cast<std::size_t>(parameter.reserved) * item;
  const auto stride = static_cast<std::size_t>(block_numel(group)) * item;
  for (int rank = 0; rank < layout.world_size; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto have = static_cast<std::size_t>(layout.numel_of(rank)) * item;
    if (have != 0) std::memcpy(target + r * stride, source + r * share, have);
    std::memset(target + r * stride + have, 0, reserved - have);
  }
}

void copy_rows_by_operators(const at::Tensor& gradient, const FlatGroup& group,
                            const Parameter& parameter) {
  const ShardLayout& layout = parameter.layout;
  const at::Tensor columns = columns_of(group, parameter);
  columns.zero_();
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

// Computes the mean over rows of a tensor on the CPU in one pass: at::mean_out adds in one pass and
// divides in another.
void mean_of_rows(float* out, const at::Tensor& rows_WN) {
  const auto* source = rows_WN.const_data_ptr<float>();
  const std::int64_t world_size = rows_WN.size(0);
  const std::int64_t numel = rows_WN.size(1);
  const std::int64_t stride = rows_WN.stride(0);
  const auto ranks = static_cast<float>(world_size);
  // Works on short stretches: the sum is still in the cache when the next rank's row comes.
  constexpr std::int64_t kStretch = 2048;
  for (std::int64_t begin = 0; begin < numel; begin += kStretch) {
    const std::int64_t end = std::min(begin + kStretch, numel);
    std::copy(source + begin, source + end, out + begin);
    for (std::int64_t rank = 1; rank + 1 < world_size; ++rank) {
      const float* row = source + rank * stride;
      for (std::int64_t i = begin; i < end; ++i) out[i] += row[i];
    }
    const float* last = source + (world_size - 1) * stride;
    for (std::int64_t i = begin; i < end; ++i) out[i] = (out[i] + last[i]) / ranks;
  }
}

// Adds gradients to the shards of a group; `fill` writes them to a [trainable_numel]
// tensor.
void publish(const ReduceContext& context, FlatGroup& group,
             const std::function<void(at::Tensor&)>& fill) {
  take_back_reduced(group, context.flat);
  const auto dtype = context.keep_low_precision ? group.reduce_dtype : group.dtype;
  const auto options = group.local.options().dtype(dtype).requires_grad(false);
  const bool accumulates =
      context.flat ? group.flat.grad().defined()
                   : std::any_of(group.parameters.begin(), group.parameters.end(),
                                 [](const Parameter* p) { return p->shard.grad().defined(); });
  if (!accumulates) {
    // Do not reuse the memory of gradients that somebody has kept.
    if (!group.grad.defined() || group.grad.storage().use_count() > 1)
      group.grad = at::empty({group.trainable_numel}, options);
    fill(group.grad);
    if (context.flat) group.flat.mutable_grad() = group.grad.detach();
  }
  at::Tensor more;
  if (accumulates) {
    more = at::empty({group.trainable_numel}, options);
    fill(more);
    if (context.flat) group.flat.mutable_grad().add_(more);
  }
  if (context.flat) return;
  for (const Parameter* parameter : group.parameters) {
    if (!parameter->trainable) continue;
    at::Tensor& gradient = parameter->shard.mutable_grad();
    const at::Tensor rows = (accumulates ? more : group.grad)
                                .narrow(0, parameter->offset, parameter->shard.numel())
                                .view(parameter->shard.sizes());
    if (gradient.defined()) {
      gradient.add_(rows);
    } else {
      gradient = accumulates ? rows.clone() : rows;
    }
  }
}

}  // namespace

void stage_gradient(const ReduceContext& context, Parameter& parameter) {
  hide_from_module(parameter);
  at::Tensor& made = parameter.full.mutable_grad();
  const bool with_kept = parameter.kept.defined() && !parameter.kept_sent;
  if (!made.defined() && !with_kept) return;
  if (made.defined()) check_dense(parameter, made);
  const OwnWork own;
  // Kept gradients grow as they would without sharding, in case this backward throws.
  at::Tensor gradient = made;
  if (parameter.kept.defined() && made.defined()) parameter.kept.add_(made);
  if (with_kept) {
    gradient = parameter.kept;
    parameter.kept_sent = true;
  }
  Streams& streams = *context.streams;
  FlatGroup& group = parameter.unit->groups[parameter.group];
  streams.order(Lane::kCompute, Lane::kReduce);
  const auto lane = streams.enter(Lane::kReduce);
  const std::int64_t world_size = parameter.layout.world_size;
  if (!group.staging.defined()) {
    const std::int64_t numel = block_numel(group);
    group.staging =
        streams.take(world_size * numel * item_bytes(group.reduce_dtype), Use::kGradients)
            .view(group.reduce_dtype)
            .view({world_size, numel});
  }
  if (parameter.staged) {
    // Used in several backwards inside one: the earlier gradient still waits to be reduced.
    add_rows(gradient, group, parameter);
  } else if (streams.on_cpu() && gradient.scalar_type() == group.reduce_dtype) {
    copy_rows(gradient.contiguous(), group, parameter);
  } else {
    copy_rows_by_operators(gradient, group, parameter);
  }
  streams.used_on(gradient, Lane::kReduce);
  made.reset();
  parameter.staged = true;
}

std::string Reduction::full_title(const std::vector<Part>& parts) {
  std::string text = "gradient reduction of ";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [unit, group] = parts[i];
    text += (i == 0 ? "" : ", ") + (unit->name.empty() ? "the root unit" : unit->name);
    if (unit->groups.size() > 1) text += std::string(" (") + c10::toString(group->dtype) + ")";
  }
  return text;
}

Reduction::Reduction(const ReduceContext& context, std::vector<Part> parts)
    : context_(&context), parts_(std::move(parts)), started_(Trace::Clock::now()) {
  const OwnWork own;
  Streams& streams = *context.streams;
  const auto lane = streams.enter(Lane::kReduce);
  const int world_size = context.shard_group->size();
  for (const auto& [unit, group] : parts_) {
    for (Parameter* parameter : group->parameters) {
      if (parameter->trainable && !parameter->staged) columns_of(*group, *parameter).zero_();
      parameter->staged = false;
    }
    const at::Tensor trailer =
        group->staging.narrow(1, group->trainable_numel, trailer_numel(group->reduce_dtype));
    if (streams.on_cpu() && world_size > 1 && !reduces_while_scattering(*context.shard_group)) {
      for (int rank = 0; rank < world_size; ++rank)
        std::memcpy(trailer.select(0, rank).mutable_data_ptr(), &unit->id, sizeof(unit->id));
    } else {
      trailer.zero_();
    }
    numel_ += block_numel(*group);
  }
  const c10::ScalarType dtype = parts_.front().second->reduce_dtype;
  if (parts_.size() == 1) {
    sent_ = std::move(parts_.front().second->staging);
    parts_.front().second->staging.reset();
  } else {
    sent_ = streams.take(world_size * numel_ * item_bytes(dtype), Use::kGradients)
                .view(dtype)
                .view({world_size, numel_});
    std::int64_t position = 0;
    for (const auto& [unit, group] : parts_) {
      sent_.narrow(1, position, block_numel(*group)).copy_(group->staging);
      position += block_numel(*group);
      streams.give(std::move(group->staging), Use::kGradients);
      group->staging.reset();
    }
  }
  if (context.hook) return;
  const std::string what = title(parts_);
  if (world_size == 1) {
    if (!context.replicate_group) return;
    if (is_16_bit(dtype)) sent_.div_(context.replicate_group->size());
    pending_ = all_reduce(context.replicate_group, sent_, ReduceOp::kSum, what);
  } else if (reduces_while_scattering(*context.shard_group)) {
    if (is_16_bit(dtype)) sent_.div_(world_size);
    received_ = streams.take(numel_ * item_bytes(dtype), Use::kGradients).view(dtype);
    pending_ = reduce_scatter(context.shard_group, received_, sent_, what);
  } else {
    received_ = streams.take(world_size * numel_ * item_bytes(dtype), Use::kGradients)
                    .view(dtype)
                    .view({world_size, numel_});
    pending_ = all_to_all(context.shard_group, received_, sent_, what);
  }
}

Reduction::~Reduction() {
  // After a move there is nothing left to give up.
  if (sent_.defined()) context_->streams->abandon(std::move(sent_), Use::kGradients);
  if (received_.defined()) context_->streams->abandon(std::move(received_), Use::kGradients);
}

void Reduction::check_ids() const {
  if (!context_->streams->on_cpu()) return;
  const ProcessGroup& group = *context_->shard_group;
  std::int64_t position = 0;
  for (const auto& [unit, flat] : parts_) {
    for (int rank = 0; rank < group.size(); ++rank) {
      std::int64_t id = 0;
      std::memcpy(
          &id,
          static_cast<const char*>(received_.const_data_ptr()) +
              (rank * numel_ + position + flat->trainable_numel) * item_bytes(flat->reduce_dtype),
          sizeof(id));
      TORCH_CHECK(id == unit->id, "rank ", group.global_rank(rank),
                  " reduces gradients of another unit where this rank reduces those of '",
                  unit->name, "': the ranks run different backwards");
    }
    position += block_numel(*flat);
  }
}

// Returns [numel_]: the mean over the shard group, in the reduce dtype.
at::Tensor Reduction::mean_rows() {
  const int world_size = context_->shard_group->size();
  if (world_size == 1) return sent_.view({-1});
  if (reduces_while_scattering(*context_->shard_group))
    return is_16_bit(received_.scalar_type()) ? received_ : received_.div_(world_size);
  at::Tensor rows = at::empty({numel_}, received_.options());
  at::mean_out(rows, received_, 0);
  return rows;
}

at::Tensor Reduction::averaged_over_replicas(const at::Tensor& rows) {
  const bool before = is_16_bit(rows.scalar_type());
  const int replicas = context_->replicate_group->size();
  if (context_->shard_group->size() > 1) {
    if (before) rows.div_(replicas);
    all_reduce(context_->replicate_group, rows, ReduceOp::kSum, title(parts_) + " over replicas")
        .wait();
  }
  return before ? rows : rows.div_(replicas);
}

void Reduction::run_hook() {
  Streams& streams = *context_->streams;
  const auto& [unit, group] = parts_.front();
  at::Tensor unsharded = sent_.narrow(1, 0, group->trainable_numel).reshape({-1}).clone();
  streams.give(std::move(sent_), Use::kGradients);
  sent_.reset();
  const bool replicated = context_->shard_group->size() == 1;
  at::Tensor sharded =
      replicated ? unsharded : at::empty({group->trainable_numel}, unsharded.options());
  const auto& ranks =
      replicated && context_->replicate_group ? context_->replicate_group : context_->shard_group;
  context_->hook(ranks, unsharded, sharded);
  publish(*context_, *group, [&](at::Tensor& out) { out.copy_(replicated ? unsharded : sharded); });
}

void Reduction::finish() {
  const TraceSpan span(context_->trace, TraceLane::kCopy, "reduce", parts_.front().first->name);
  const OwnWork own;
  Streams& streams = *context_->streams;
  const auto lane = streams.enter(Lane::kReduce);
  if (context_->hook) return run_hook();
  if (pending_) pending_.wait();
  if (context_->trace != nullptr)
    context_->trace->add(TraceLane::kReduce, title(parts_), started_, Trace::Clock::now());
  const int world_size = context_->shard_group->size();
  const bool exchanged = world_size > 1 && !reduces_while_scattering(*context_->shard_group);
  if (exchanged) check_ids();
  at::Tensor rows;
  if (context_->replicate_group) {
    rows = averaged_over_replicas(mean_rows());
  } else if (!exchanged) {
    rows = mean_rows();
  }
  std::int64_t position = 0;
  for (const auto& [unit, group] : parts_) {
    const std::int64_t at = position;
    const std::int64_t numel = group->trainable_numel;
    publish(*context_, *group, [&](at::Tensor& out) {
      if (rows.defined()) {
        out.copy_(rows.narrow(0, at, numel));
      } else if (streams.on_cpu() && out.scalar_type() == at::kFloat &&
                 received_.scalar_type() == at::kFloat) {
        mean_of_rows(out.mutable_data_ptr<float>(), received_.narrow(1, at, numel));
      } else if (out.device() == received_.device()) {
        at::mean_out(out, received_.narrow(1, at, numel), 0, false, out.scalar_type());
      } else {
        out.copy_(at::mean(received_.narrow(1, at, numel), 0, false, out.scalar_type()));
      }
    });
    position += block_numel(*group);
  }
  streams.give(std::move(sent_), Use::kGradients);
  streams.give(std::move(received_), Use::kGradients);
  sent_.reset();
  received_.reset();
}

}  // namespace fsdp::internal
