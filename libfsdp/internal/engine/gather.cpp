// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/own_work.h"

namespace fsdp::internal {
namespace {

// Writes a unit's block: its shards in the dtype of compute, and the trailer.
void fill(Buffers& buffers, const Unit& unit, const at::Tensor& block, bool cast) {
  if (!cast) {
    block.copy_(unit.local, /*non_blocking=*/true);
    return;
  }
  at::Tensor local = unit.local;
  const bool is_offloaded = local.device() != block.device();
  if (is_offloaded) {
    // Otherwise the host would cast, and the copy would wait for the host.
    local = buffers.take(unit.local.numel(), Use::kParameters, Lane::kUnshard);
    local.copy_(unit.local, /*non_blocking=*/true);
  }
  for (const FlatGroup& group : unit.groups) {
    block.narrow(0, group.gather_offset, group.numel * item_bytes(group.compute_dtype))
        .view(group.compute_dtype)
        .copy_(local.narrow(0, group.local_offset, group.numel * item_bytes(group.dtype))
                   .view(group.dtype));
  }
  block.narrow(0, unit.gather_bytes - kTrailerBytes, kTrailerBytes)
      .copy_(local.narrow(0, local.numel() - kTrailerBytes, kTrailerBytes));
  if (is_offloaded) buffers.give(std::move(local), Use::kParameters, Lane::kUnshard);
}

}  // namespace

std::string Gather::title(const std::vector<Unit*>& units) {
  std::string text = "all-gather of " + units.front()->title();
  if (units.size() > 1) text += " and " + std::to_string(units.size() - 1) + " more units";
  return text;
}

std::string Gather::full_title(const std::vector<Unit*>& units) {
  std::string text;
  for (const Unit* unit : units) text += (text.empty() ? "all-gather of " : ", ") + unit->title();
  return text;
}

Gather::Gather(const EngineContext& context, std::vector<Unit*> units)
    : context_(context),
      streams_(context.streams),
      of_pieces_(units.front()->piece.defined()),
      group_(of_pieces_ ? units.front()->sharding->kept_over : units.front()->sharding->mesh.shard),
      units_(std::move(units)),
      started_(Trace::now(context.trace)) {}

Gather::~Gather() {
  for (auto& [unit, full] : read_)
    context_.buffers.abandon(std::move(full), Use::kParameters, Lane::kUnshard);
  context_.buffers.abandon(std::move(staging_), Use::kParameters, Lane::kUnshard);
  context_.buffers.abandon(std::move(blocks_), Use::kParameters, Lane::kUnshard);
}

void Gather::start(const EngineContext& context, const std::vector<Unit*>& units) {
  const OwnWork own;
  Buffers& buffers = context.buffers;
  const auto lane = context.streams.enter(Lane::kUnshard);
  const std::shared_ptr<Gather> gather(new Gather(context, units));
  const auto& group = gather->group_;
  std::vector<std::int64_t> positions;
  for (const Unit* unit : units) {
    positions.push_back(gather->block_bytes_);
    gather->block_bytes_ += gather->of_pieces_ ? unit->piece.numel() : unit->gather_bytes;
  }
  at::Tensor input;
  const Unit& first = *units.front();
  const bool as_it_is = units.size() == 1 && !casts(first) &&
                        first.local.device() == context.streams.device() && group->size() > 1;
  if (gather->of_pieces_) {
    gather->staging_ = units.front()->piece;
    input = gather->staging_;
    units.front()->piece.reset();
  } else if (as_it_is) {
    input = first.local;
  } else {
    gather->staging_ = buffers.take(gather->block_bytes_, Use::kParameters, Lane::kUnshard);
    input = gather->staging_;
    for (std::size_t i = 0; i < units.size(); ++i)
      fill(buffers, *units[i], input.narrow(0, positions[i], units[i]->gather_bytes),
           casts(*units[i]));
  }
  const auto take_blocks = [&] {
    gather->blocks_ =
        buffers.take(gather->block_bytes_ * group->size(), Use::kParameters, Lane::kUnshard);
  };
  if (group->size() == 1) {
    gather->blocks_ = std::move(gather->staging_);
  } else if (context.streams.on_cpu()) {
    if (!has_direct_copies(*group)) take_blocks();
    gather->pending_ = gather_blocks(group, gather->blocks_, input, title(units));
  } else {
    take_blocks();
    gather->pending_ = all_gather(group, gather->blocks_, input, title(units));
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    units[i]->gather = gather;
    units[i]->gather_position = positions[i];
    units[i]->state = UnitState::kGathering;
  }
}

void Gather::finish(Unit& unit) {
  // The unit may hold the last reference to this object.
  const std::shared_ptr<Gather> self = shared_from_this();
  const OwnWork own;
  const auto lane = streams_.enter(Lane::kUnshard);
  const TraceSpan span(context_.trace, TraceLane::kCopy, "unshard", unit.name);
  try {
    wait();
    const auto read = read_.extract(&unit);
    unit.full = read ? std::move(read.mapped()) : copied_out(unit);
  } catch (...) {
    fail();
    throw;
  }
  leave(unit);
  make_unsharded(unit);
}

void Gather::discard(Unit& unit) {
  const std::shared_ptr<Gather> self = shared_from_this();
  const OwnWork own;
  const auto lane = streams_.enter(Lane::kUnshard);
  try {
    if (units_.size() == 1)
      pending_.wait();
    else
      wait();
  } catch (...) {
    fail();
    throw;
  }
  if (auto read = read_.extract(&unit))
    context_.buffers.give(std::move(read.mapped()), Use::kParameters, Lane::kUnshard);
  leave(unit);
  unit.state = UnitState::kSharded;
}

void Gather::let_read() noexcept {
  if (streams_.on_cpu() || waited_) return;
  try {
    const auto lane = streams_.enter(Lane::kUnshard);
    pending_.wait();
  } catch (const std::exception&) {
    // Another rank failed, and with it the collective.
  }
  waited_ = true;
}

void Gather::wait() {
  if (waited_) return;
  if (streams_.on_cpu() && pending_) {
    pending_.read(blocks_, [&](const Blocks& blocks) {
      for (const Unit* unit : units_) read_[unit] = copied(blocks, *unit);
    });
  } else {
    pending_.wait();
  }
  waited_ = true;
  if (context_.trace != nullptr)
    context_.trace->add(TraceLane::kUnshard, title(units_), std::move(started_),
                        Trace::now(context_.trace));
}

// Returns a unit's parameters one after the other, each with the shards of all ranks together; of
// pieces, one after the other.
at::Tensor Gather::copied(const Blocks& blocks, const Unit& unit) const {
  const std::int64_t ranks = group_->size();
  const std::vector<std::int64_t> parts =
      of_pieces_ ? std::vector<std::int64_t>{block_bytes_} : unit.gather_parts;
  at::Tensor full = context_.buffers.take((of_pieces_ ? block_bytes_ : unit.gather_bytes) * ranks,
                                          Use::kParameters, Lane::kUnshard);
  auto* const target = static_cast<char*>(full.mutable_data_ptr());
  try {
    std::vector<Blocks::Segment> segments;
    for (int rank = 0; rank < ranks; ++rank) {
      segments.clear();
      std::int64_t position = 0;
      for (const std::int64_t bytes : parts) {
        segments.push_back(
            {unit.gather_position + position, bytes, target + position * ranks + rank * bytes});
        position += bytes;
      }
      blocks.copy(rank, segments);
    }
    context_.checks.check(unit, target + full.numel() - kTrailerBytes * unit.sharding->world_size(),
                          kTrailerBytes);
  } catch (...) {
    context_.buffers.abandon(std::move(full), Use::kParameters, Lane::kUnshard);
    throw;
  }
  return full;
}

// Does the same as copied() with blocks on a device.  With a single rank, `unit` is the last one.
at::Tensor Gather::copied_out(const Unit& unit) {
  const std::int64_t world_size = group_->size();
  if (world_size == 1) return std::move(blocks_);
  if (of_pieces_) {
    check_trailers(unit, blocks_);
    return std::move(blocks_);
  }
  at::Tensor full =
      context_.buffers.take(unit.gather_bytes * world_size, Use::kParameters, Lane::kUnshard);
  // One operator for all parameters, in the widest elements that all parts have: CUDA has one
  // kernel for it.
  const auto is_whole = [&](std::int64_t item) {
    return block_bytes_ % item == 0 && unit.gather_position % item == 0 &&
           std::all_of(unit.gather_parts.begin(), unit.gather_parts.end(),
                       [&](std::int64_t bytes) { return bytes % item == 0; });
  };
  const c10::ScalarType dtype = is_whole(8)   ? c10::kLong
                                : is_whole(4) ? c10::kInt
                                : is_whole(2) ? c10::kShort
                                              : c10::kByte;
  const auto item = item_bytes(dtype);
  const at::Tensor wide = full.view(dtype);
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> sizes;
  std::int64_t position = 0;
  for (const std::int64_t bytes : unit.gather_parts) {
    const std::int64_t size = bytes / item;
    parts.push_back(
        wide.narrow(0, position * world_size, size * world_size).view({world_size, size}));
    sizes.push_back(size);
    position += size;
  }
  at::split_with_sizes_copy_out(parts,
                                blocks_.view(dtype)
                                    .view({world_size, block_bytes_ / item})
                                    .narrow(1, unit.gather_position / item, position),
                                sizes, 1);
  check_trailers(unit, full);
  return full;
}

void Gather::check_trailers(const Unit& unit, const at::Tensor& full) {
  const std::int64_t bytes = unit.sharding->world_size() * kTrailerBytes;
  context_.checks.check_later(unit, full.narrow(0, full.numel() - bytes, bytes));
}

void Gather::leave(Unit& unit) {
  std::erase(units_, &unit);
  unit.gather.reset();
  if (!units_.empty()) return;
  context_.buffers.give(std::move(staging_), Use::kParameters, Lane::kUnshard);
  context_.buffers.give(std::move(blocks_), Use::kParameters, Lane::kUnshard);
}

void Gather::fail() noexcept {
  for (Unit* unit : units_) {
    unit->gather.reset();
    unit->prefetched = false;
    unit->state = UnitState::kSharded;
  }
  units_.clear();
}

}  // namespace fsdp::internal
