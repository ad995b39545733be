// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/Functions.h>

#include "libfsdp/comm_hooks.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/staging.h"

namespace fsdp::internal {
namespace {

std::string title(const std::vector<Reduction::Part>& parts) {
  std::string text = "gradient reduction of " + parts.front().first->title();
  if (parts.size() > 1) text += " and " + std::to_string(parts.size() - 1) + " more";
  return text;
}

// Returns the divisor of gradients before a backend adds those of `ranks`.
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

// Computes the mean over ranks of floats in their blocks, from byte `from` on.  Takes one pass;
// at::mean_out adds in one and divides in another.
void mean_of_blocks(float* out, const Blocks& blocks, int world_size, std::int64_t from,
                    std::int64_t numel) {
  const auto ranks = static_cast<float>(world_size);
  // Works on stretches, so that the sum is still in the cache when the next rank's row comes.
  constexpr std::int64_t kStretch = 1 << 15;
  std::vector<float> scratch(static_cast<std::size_t>(std::min(kStretch, numel)));
  const auto row_of = [&](int rank, std::int64_t begin, std::int64_t count) {
    const auto item = static_cast<std::int64_t>(sizeof(float));
    return reinterpret_cast<const float*>(blocks.view(rank, from + begin * item, count * item,
                                                      reinterpret_cast<char*>(scratch.data())));
  };
  for (std::int64_t begin = 0; begin < numel; begin += kStretch) {
    const std::int64_t count = std::min(kStretch, numel - begin);
    float* const sum = out + begin;
    const float* const first = row_of(0, begin, count);
    std::copy(first, first + count, sum);
    for (int rank = 1; rank + 1 < world_size; ++rank) {
      const float* const row = row_of(rank, begin, count);
      for (std::int64_t i = 0; i < count; ++i) sum[i] += row[i];
    }
    const float* const last = row_of(world_size - 1, begin, count);
    for (std::int64_t i = 0; i < count; ++i) sum[i] = (sum[i] + last[i]) / ranks;
  }
}

}  // namespace

std::string Reduction::full_title(const std::vector<Part>& parts) {
  std::string text;
  for (const auto& [unit, group] : parts) {
    text += (text.empty() ? "gradient reduction of " : ", ") + unit->title();
    if (unit->groups.size() > 1) text += std::string(" (") + c10::toString(group->dtype) + ")";
    text += group->trained_text;
  }
  return text;
}

bool Reduction::is_exchanged() const {
  return mesh().shard->size() > 1 && !reduces_while_scattering(*mesh().shard);
}

Reduction::Reduction(const EngineContext& context, std::vector<Part> parts)
    : context_(&context), parts_(std::move(parts)) {
  const OwnWork own;
  Buffers& buffers = context.buffers;
  Streams& streams = context.streams;
  for (const auto& [unit, group] : parts_) {
    complete_staging(context, *unit, *group);
    numel_ += block_numel(context, *group);
  }
  streams.order(Lane::kCompute, Lane::kReduce);
  const auto lane = streams.enter(Lane::kReduce);
  started_ = Trace::now(context.trace);
  if (parts_.size() == 1) {
    sent_ = std::move(parts_.front().second->staging);
    parts_.front().second->staging.reset();
  } else {
    const std::int64_t ranks = mesh().shard->size();
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
  if (!hook()) send(title(parts_));
}

void Reduction::take_received(std::int64_t ranks) {
  const c10::ScalarType dtype = sent_.scalar_type();
  const std::int64_t bytes = ranks * numel_ * item_bytes(dtype);
  received_ = context_->buffers.take(bytes, Use::kGradients, Lane::kReduce).view(dtype);
  if (ranks > 1) received_ = received_.view({ranks, numel_});
}

void Reduction::send(const std::string& what) {
  const EngineContext& context = *context_;
  const int world_size = mesh().shard->size();
  const c10::ScalarType dtype = sent_.scalar_type();
  if (world_size == 1) {
    if (!mesh().replicate || !all_reduces()) return;
    add_partial(sent_.view({-1}));
    divide_before(sent_, mesh().replicate->size());
    pending_ = all_reduce(mesh().replicate, sent_, ReduceOp::kSum, what);
  } else if (is_exchanged()) {
    const bool on_cpu = context.streams.on_cpu();
    if (!on_cpu || !has_direct_copies(*mesh().shard)) take_received(world_size);
    pending_ = on_cpu ? exchange_blocks(mesh().shard, received_, sent_, what)
                      : all_to_all(mesh().shard, received_, sent_, what);
  } else {
    FlatGroup& group = *parts_.front().second;
    receives_in_grad_ = parts_.size() == 1 && is_plain() && !accumulates(group) &&
                        !group.receives_in_grad &&
                        memory_of_gradients(context, group).device() == sent_.device() &&
                        group.grad.scalar_type() == dtype;
    if (receives_in_grad_) {
      received_ = group.grad;
      group.receives_in_grad = true;
    } else {
      take_received(1);
    }
    divide_before(sent_, world_size);
    pending_ = reduce_scatter(mesh().shard, received_, sent_, what);
  }
}

Reduction::~Reduction() {
  // A moved-from object has nothing to give up.
  if (receives_in_grad_ && received_.defined()) {
    // The collective may still write this memory.
    FlatGroup& group = *parts_.front().second;
    group.receives_in_grad = false;
    group.grad_rows.clear();
    group.grad.reset();
    received_.reset();
  }
  const Lane lane = parts_.size() == 1 ? Lane::kCompute : Lane::kReduce;
  if (sent_.defined()) context_->buffers.abandon(std::move(sent_), Use::kGradients, lane);
  if (received_.defined())
    context_->buffers.abandon(std::move(received_), Use::kGradients, Lane::kReduce);
}

// Throws: c10::Error if another rank reduces other units.
void Reduction::check_ids(const Blocks& blocks) const {
  const ProcessGroup& group = *mesh().shard;
  std::int64_t position = 0;
  for (const auto& [unit, flat] : parts_) {
    for (int rank = 0; rank < group.size(); ++rank) {
      std::int64_t id = 0;
      std::array<char, sizeof(id)> scratch{};
      const std::int64_t from = (position + flat->grad_numel) * item_bytes(flat->reduce_dtype);
      std::memcpy(&id, blocks.view(rank, from, sizeof(id), scratch.data()), sizeof(id));
      FSDP_CHECK(id == unit->id, "rank ", group.global_rank(rank),
                 " reduces gradients of another unit where this rank reduces those of '",
                 unit->name, "': the ranks run different backwards");
    }
    position += block_numel(*context_, *flat);
  }
}

void Reduction::by_hook(std::vector<Arriving>& arriving) {
  const auto& [unit, group] = parts_.front();
  at::Tensor unsharded = sent_.narrow(1, 0, group->grad_numel).reshape({-1}).clone();
  const bool replicated = mesh().shard->size() == 1;
  at::Tensor sharded = replicated ? unsharded : at::empty({group->grad_numel}, unsharded.options());
  const auto& ranks = replicated && mesh().replicate ? mesh().replicate : mesh().shard;
  hook()(ranks, unsharded, sharded);
  publish(*context_, *group, replicated ? unsharded : sharded, arriving);
}

void Reduction::by_reading() {
  std::vector<at::Tensor> means;
  std::vector<bool> adds;
  for (const auto& [unit, group] : parts_) {
    take_back_reduced(*group);
    adds.push_back(accumulates(*group));
    means.push_back(adds.back() ? at::empty({group->grad_numel}, at::kFloat)
                                : memory_of_gradients(*context_, *group));
  }
  pending_.read(received_, [&](const Blocks& blocks) {
    check_ids(blocks);
    std::int64_t position = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const FlatGroup& group = *parts_[i].second;
      mean_of_blocks(means[i].mutable_data_ptr<float>(), blocks, mesh().shard->size(),
                     position * item_bytes(at::kFloat), group.grad_numel);
      position += block_numel(*context_, group);
    }
  });
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    FlatGroup& group = *parts_[i].second;
    if (adds[i])
      add_to_gradients(*context_, group, means[i]);
    else
      show_grad(group);
  }
  note_received();
}

void Reduction::by_exchange(std::vector<Arriving>& arriving) {
  receive();
  for_each_part(received_, [&](Unit&, FlatGroup& group, const at::Tensor& part) {
    publish_mean(group, part, arriving);
  });
}

void Reduction::by_rows(std::vector<Arriving>& arriving) {
  receive();
  at::Tensor rows = mean_rows();
  if (!all_reduces()) {
    for_each_part(rows, [](Unit&, FlatGroup& group, const at::Tensor& part) {
      if (group.partial.defined())
        group.partial.add_(part);
      else
        group.partial = part.clone();
    });
    return;
  }
  if (mesh().shard->size() > 1) add_partial(rows);
  if (mesh().replicate) rows = averaged_over_replicas(rows);
  const int ranks = mesh().shard->size() * (mesh().replicate ? mesh().replicate->size() : 1);
  for_each_part(rows, [&](Unit& unit, FlatGroup&, at::Tensor part) {
    if (unit.divide_factor) part.mul_(ranks / *unit.divide_factor);
    if (unit.reduced_hook) unit.reduced_hook(part);
  });
  for_each_part(rows, [&](Unit&, FlatGroup& group, const at::Tensor& part) {
    if (!receives_in_grad_) return publish(*context_, group, part, arriving);
    take_back_reduced(group);
    show_grad(group);
    group.receives_in_grad = false;
    received_.reset();
  });
}

// Waits for the rows of all ranks, in received_ if they were exchanged.
void Reduction::receive() {
  if (pending_ && is_exchanged() && context_->streams.on_cpu()) {
    if (!received_.defined()) take_received(mesh().shard->size());
    pending_.read(received_, [&](const Blocks& blocks) {
      check_ids(blocks);
      const auto bytes = static_cast<std::int64_t>(sent_.nbytes()) / mesh().shard->size();
      auto* const rows = static_cast<char*>(received_.mutable_data_ptr());
      if (!has_direct_copies(*mesh().shard)) return;  // the rows are there already
      for (int rank = 0; rank < mesh().shard->size(); ++rank)
        blocks.copy(rank, {{0, bytes, rows + rank * bytes}});
    });
  } else {
    pending_.wait();
  }
  note_received();
}

void Reduction::note_received() {
  if (context_->trace == nullptr) return;
  context_->trace->add(TraceLane::kReduce, title(parts_), std::move(started_),
                       Trace::now(context_->trace));
}

// Returns [numel_]: the mean over the shard group, in the reduce dtype.
at::Tensor Reduction::mean_rows() {
  const int world_size = mesh().shard->size();
  if (world_size == 1) return sent_.view({-1});
  if (!is_exchanged()) {
    divide_after(received_, world_size);
    return received_;
  }
  at::Tensor rows = at::empty({numel_}, received_.options());
  at::mean_out(rows, received_, 0);
  return rows;
}

template <typename F>
void Reduction::for_each_part(const at::Tensor& rows, const F& f) const {
  std::int64_t position = 0;
  for (const auto& [unit, group] : parts_) {
    f(*unit, *group, rows.narrow(-1, position, group->grad_numel));
    position += block_numel(*context_, *group);
  }
}

bool Reduction::is_plain() const {
  return all_reduces() && std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
           return !part.first->divide_factor && !part.first->reduced_hook &&
                  !part.second->partial.defined();
         });
}

void Reduction::add_partial(const at::Tensor& rows) {
  for_each_part(rows, [](Unit&, FlatGroup& group, const at::Tensor& part) {
    if (group.partial.defined()) part.add_(group.partial);
    group.partial.reset();
  });
}

at::Tensor Reduction::averaged_over_replicas(const at::Tensor& rows) {
  const int replicas = mesh().replicate->size();
  if (mesh().shard->size() > 1) {
    divide_before(rows, replicas);
    all_reduce(mesh().replicate, rows, ReduceOp::kSum, title(parts_) + " over replicas").wait();
  }
  divide_after(rows, replicas);
  return rows;
}

// Publishes the mean of all ranks' rows, without copying it in between.
void Reduction::publish_mean(FlatGroup& group, const at::Tensor& received_WN,
                             std::vector<Arriving>& arriving) {
  const auto dtype = group.grad_dtype();
  if (group.local.device() != received_WN.device())
    return publish(*context_, group, at::mean(received_WN, 0, false, dtype), arriving);
  take_back_reduced(group);
  const bool adds = accumulates(group);
  at::Tensor out = adds ? at::empty({group.grad_numel}, received_WN.options().dtype(dtype))
                        : memory_of_gradients(*context_, group);
  at::mean_out(out, received_WN, 0, false, dtype);
  if (adds)
    add_to_gradients(*context_, group, out);
  else
    show_grad(group);
}

void Reduction::finish(std::vector<Arriving>& arriving) {
  const OwnWork own;
  Streams& streams = context_->streams;
  const auto lane = streams.enter(Lane::kReduce);
  const TraceSpan span(context_->trace, TraceLane::kCopy, "reduce", parts_.front().first->name);
  const bool in_floats = std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.second->reduce_dtype == at::kFloat && part.second->dtype == at::kFloat;
  });
  // The way may depend on reductions that finished since this one began: see is_plain().
  if (hook())
    by_hook(arriving);
  else if (!is_plain() || !is_exchanged() || mesh().replicate)
    by_rows(arriving);
  else if (pending_ && streams.on_cpu() && in_floats)
    by_reading();
  else
    by_exchange(arriving);
  // The buffer was staged on kCompute, and sent from here.
  const bool was_staged = parts_.size() == 1;
  if (was_staged)
    context_->buffers.give(std::move(sent_), Use::kGradients, Lane::kCompute,
                           {streams.id(Lane::kReduce)});
  else
    context_->buffers.give(std::move(sent_), Use::kGradients, Lane::kReduce);
  context_->buffers.give(std::move(received_), Use::kGradients, Lane::kReduce);
  sent_.reset();
  received_.reset();
}

}  // namespace fsdp::internal
