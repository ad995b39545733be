// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/reduction.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/comm_hooks.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/own_work.h"
#include "libfsdp/internal/engine/staging.h"

namespace fsdp::internal {
namespace {

std::string title(const std::vector<Reduction::Part>& parts) {
  const std::string& name = parts.front().first->name;
  std::string text = "gradient reduction of ";
  text += name.empty() ? "the root unit" : name;
  if (parts.size() > 1) text += " and " + std::to_string(parts.size() - 1) + " more";
  return text;
}

// Returns what gradients are divided by before a backend adds those of `ranks`.
int divisor_before(c10::ScalarType dtype, int ranks) {
  const bool is_16_bit = dtype == c10::kHalf || dtype == c10::kBFloat16;
  return is_16_bit ? gradient_predivide_factor(ranks) : 1;
}

void divide_before(const at::Tensor& tensor, int ranks) {
  const int divisor = divisor_before(tensor.scalar_type(), ranks);
  if (divisor != 1) tensor.div_(divisor);
}

void divide_after(const at::Tensor& tensor, int ranks) {
  const int divisor = divisor_before(tensor.scalar_type(), ranks);
  if (divisor != ranks) tensor.div_(static_cast<double>(ranks) / divisor);
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

}  // namespace

std::string Reduction::full_title(const std::vector<Part>& parts) {
  std::string text = "gradient reduction of ";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [unit, group] = parts[i];
    text += (i == 0 ? "" : ", ") + (unit->name.empty() ? "the root unit" : unit->name);
    if (unit->groups.size() > 1) text += std::string(" (") + c10::toString(group->dtype) + ")";
  }
  return text;
}

bool Reduction::is_exchanged() const {
  return context_->shard_group->size() > 1 && !reduces_while_scattering(*context_->shard_group);
}

Reduction::Reduction(const ReduceContext& context, std::vector<Part> parts)
    : context_(&context), parts_(std::move(parts)), started_(Trace::Clock::now()) {
  const OwnWork own;
  Buffers& buffers = *context.buffers;
  Streams& streams = *context.streams;
  for (const auto& [unit, group] : parts_) {
    complete_staging(context, *unit, *group);
    numel_ += block_numel(context, *group);
  }
  streams.order(Lane::kCompute, Lane::kReduce);
  const auto lane = streams.enter(Lane::kReduce);
  if (parts_.size() == 1) {
    sent_ = std::move(parts_.front().second->staging);
    parts_.front().second->staging.reset();
  } else {
    const std::int64_t ranks = context.shard_group->size();
    const c10::ScalarType dtype = parts_.front().second->reduce_dtype;
    sent_ = buffers.take(ranks * numel_ * item_bytes(dtype), Use::kGradients, Lane::kReduce)
                .view(dtype)
                .view({ranks, numel_});
    std::vector<at::Tensor> blocks;
    for (const auto& [unit, group] : parts_) blocks.push_back(group->staging);
    at::cat_out(sent_, blocks, 1);
    blocks.clear();
    for (const auto& [unit, group] : parts_) {
      buffers.give(std::move(group->staging), Use::kGradients, Lane::kCompute,
                   {streams.id(Lane::kReduce)});
      group->staging.reset();
    }
  }
  if (!context.hook) send(title(parts_));
}

void Reduction::send(const std::string& what) {
  const ReduceContext& context = *context_;
  const int world_size = context.shard_group->size();
  const c10::ScalarType dtype = sent_.scalar_type();
  const auto receive = [&](std::int64_t ranks) {
    const std::int64_t bytes = ranks * numel_ * item_bytes(dtype);
    received_ = context.buffers->take(bytes, Use::kGradients, Lane::kReduce).view(dtype);
  };
  if (world_size == 1) {
    if (!context.replicate_group) return;
    divide_before(sent_, context.replicate_group->size());
    pending_ = all_reduce(context.replicate_group, sent_, ReduceOp::kSum, what);
  } else if (is_exchanged()) {
    receive(world_size);
    received_ = received_.view({world_size, numel_});
    pending_ = all_to_all(context.shard_group, received_, sent_, what);
  } else {
    FlatGroup& group = *parts_.front().second;
    receives_in_grad_ = parts_.size() == 1 && !accumulates(context, group) &&
                        !group.receives_in_grad &&
                        memory_of_gradients(context, group).device() == sent_.device() &&
                        group.grad.scalar_type() == dtype;
    if (receives_in_grad_) {
      received_ = group.grad;
      group.receives_in_grad = true;
    } else {
      receive(1);
    }
    divide_before(sent_, world_size);
    pending_ = reduce_scatter(context.shard_group, received_, sent_, what);
  }
}

Reduction::~Reduction() {
  // After a move there is nothing left to give up.
  if (receives_in_grad_ && received_.defined()) {
    // The collective may still write it.
    FlatGroup& group = *parts_.front().second;
    group.receives_in_grad = false;
    group.grad_rows.clear();
    group.grad.reset();
    received_.reset();
  }
  const Lane lane = parts_.size() == 1 ? Lane::kCompute : Lane::kReduce;
  if (sent_.defined()) context_->buffers->abandon(std::move(sent_), Use::kGradients, lane);
  if (received_.defined())
    context_->buffers->abandon(std::move(received_), Use::kGradients, Lane::kReduce);
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
    position += block_numel(*context_, *flat);
  }
}

// Returns [numel_]: the mean over the shard group, in the reduce dtype.
at::Tensor Reduction::mean_rows() {
  const int world_size = context_->shard_group->size();
  if (world_size == 1) return sent_.view({-1});
  if (!is_exchanged()) {
    divide_after(received_, world_size);
    return received_;
  }
  at::Tensor rows = at::empty({numel_}, received_.options());
  at::mean_out(rows, received_, 0);
  return rows;
}

at::Tensor Reduction::averaged_over_replicas(const at::Tensor& rows) {
  const int replicas = context_->replicate_group->size();
  if (context_->shard_group->size() > 1) {
    divide_before(rows, replicas);
    all_reduce(context_->replicate_group, rows, ReduceOp::kSum, title(parts_) + " over replicas")
        .wait();
  }
  divide_after(rows, replicas);
  return rows;
}

void Reduction::run_hook(std::vector<Arriving>& arriving) {
  const auto& [unit, group] = parts_.front();
  at::Tensor unsharded = sent_.narrow(1, 0, group->trainable_numel).reshape({-1}).clone();
  const bool replicated = context_->shard_group->size() == 1;
  at::Tensor sharded =
      replicated ? unsharded : at::empty({group->trainable_numel}, unsharded.options());
  const auto& ranks =
      replicated && context_->replicate_group ? context_->replicate_group : context_->shard_group;
  context_->hook(ranks, unsharded, sharded);
  publish(*context_, *group, replicated ? unsharded : sharded, arriving);
}

// Publishes the mean of all ranks' rows, without a copy of it in between.
void Reduction::publish_exchanged(FlatGroup& group, const at::Tensor& received_WN,
                                  std::vector<Arriving>& arriving) {
  const auto dtype = context_->keep_low_precision ? group.reduce_dtype : group.dtype;
  if (group.local.device() != received_WN.device())
    return publish(*context_, group, at::mean(received_WN, 0, false, dtype), arriving);
  take_back_reduced(group, context_->flat);
  const bool adds = accumulates(*context_, group);
  at::Tensor out = adds ? at::empty({group.trainable_numel}, received_WN.options().dtype(dtype))
                        : memory_of_gradients(*context_, group);
  if (out.is_cpu() && dtype == at::kFloat && received_WN.scalar_type() == at::kFloat)
    mean_of_rows(out.mutable_data_ptr<float>(), received_WN);
  else
    at::mean_out(out, received_WN, 0, false, dtype);
  if (adds)
    add_to_gradients(*context_, group, out);
  else
    show_grad(*context_, group);
}

void Reduction::finish(std::vector<Arriving>& arriving) {
  const TraceSpan span(context_->trace, TraceLane::kCopy, "reduce", parts_.front().first->name);
  const OwnWork own;
  Streams& streams = *context_->streams;
  const auto lane = streams.enter(Lane::kReduce);
  if (pending_) pending_.wait();
  if (context_->trace != nullptr && !context_->hook)
    context_->trace->add(TraceLane::kReduce, title(parts_), started_, Trace::Clock::now());
  if (context_->hook) {
    run_hook(arriving);
  } else if (is_exchanged() && !context_->replicate_group) {
    check_ids();
    std::int64_t position = 0;
    for (const auto& [unit, group] : parts_) {
      publish_exchanged(*group, received_.narrow(1, position, group->trainable_numel), arriving);
      position += block_numel(*context_, *group);
    }
  } else {
    if (is_exchanged()) check_ids();
    at::Tensor rows = mean_rows();
    if (context_->replicate_group) rows = averaged_over_replicas(rows);
    std::int64_t position = 0;
    for (const auto& [unit, group] : parts_) {
      if (receives_in_grad_) {
        take_back_reduced(*group, context_->flat);
        show_grad(*context_, *group);
        group->receives_in_grad = false;
        received_.reset();
      } else {
        publish(*context_, *group, rows.narrow(0, position, group->trainable_numel), arriving);
      }
      position += block_numel(*context_, *group);
    }
  }
  // Staged on kCompute, and sent from here.
  const bool was_staged = parts_.size() == 1;
  if (was_staged)
    context_->buffers->give(std::move(sent_), Use::kGradients, Lane::kCompute,
                            {streams.id(Lane::kReduce)});
  else
    context_->buffers->give(std::move(sent_), Use::kGradients, Lane::kReduce);
  context_->buffers->give(std::move(received_), Use::kGradients, Lane::kReduce);
  sent_.reset();
  received_.reset();
}

}  // namespace fsdp::internal
