// SPDX-License-Identifier: Apache-2.0
#include "formats/state/checkpoint/source_pieces.h"

#include <algorithm>
#include <tuple>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/flat_range.h"

namespace fsdp::formats {
namespace {

// Enough for the columns of a grid.
constexpr std::size_t kMaxHeldChunks = 8;

std::vector<Box> boxes_of(std::span<const std::int64_t> shape, ElementRange part) {
  return flat_range_boxes(shape, static_cast<std::int64_t>(part.first),
                          static_cast<std::int64_t>(part.first + part.count));
}

// Gives hints for what lies in the boxes.  Returns whether more hints are worth giving.
bool expect_parts(const Checkpoint& checkpoint, const TensorEntry& tensor, std::size_t chunk,
                  std::span<const Box> boxes) {
  bool more = false;
  for (const Box& box : boxes) {
    const auto part = reach_in(tensor.chunks.box(chunk), box.view());
    if (part) more = checkpoint.expect_chunk(tensor, chunk, *part) || more;
  }
  return more;
}

}  // namespace

TargetPiece whole_tensor_piece(const Checkpoint& checkpoint, std::size_t number) {
  const TensorEntry& tensor = checkpoint.index().tensors[number];
  TargetPiece piece;
  piece.key = tensor.key;
  piece.dtype = tensor.dtype;
  piece.box = whole_box(tensor.shape);
  piece.sources = [&checkpoint, number] {
    const TensorEntry& entry = checkpoint.index().tensors[number];
    std::vector<SourceChunk> sources;
    sources.reserve(entry.chunks.size());
    for (std::size_t c = 0; c < entry.chunks.size(); ++c) {
      const BoxView box = entry.chunks.box(c);
      if (volume(box) == 0) continue;
      sources.push_back(
          {{{box.offset.begin(), box.offset.end()}, {box.size.begin(), box.size.end()}},
           checkpoint.chunk(entry, c)});
    }
    return sources;
  };
  piece.expect = [&checkpoint, number](ElementRange part) {
    const TensorEntry& entry = checkpoint.index().tensors[number];
    bool more = false;
    if (part.count == entry.numel()) {
      for (std::size_t c = 0; c < entry.chunks.size(); ++c)
        more = checkpoint.expect_chunk(entry, c, {0, volume(entry.chunks.box(c))}) || more;
      return more;
    }
    const std::vector<Box> boxes = boxes_of(entry.shape, part);
    for (std::size_t c = 0; c < entry.chunks.size(); ++c)
      more = expect_parts(checkpoint, entry, c, boxes) || more;
    return more;
  };
  return piece;
}

const ChunkData& ChunkCache::get(const Checkpoint& checkpoint, std::size_t tensor,
                                 std::size_t chunk) {
  const auto found = std::ranges::find_if(
      held_, [&](const Held& held) { return held.tensor == tensor && held.chunk == chunk; });
  if (found != held_.end()) {
    std::rotate(found, found + 1, held_.end());
    return held_.back().data;
  }
  ChunkData data = checkpoint.chunk(checkpoint.index().tensors[tensor], chunk);
  if (held_.size() == kMaxHeldChunks) held_.erase(held_.begin());
  held_.push_back({tensor, chunk, std::move(data)});
  return held_.back().data;
}

void TensorSource::sort_chunks() {
  const ChunkList& chunks = tensor().chunks;
  placed_.reserve(chunks.size());
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const BoxView box = chunks.box(c);
    if (volume(box) == 0) continue;
    const bool scalar = box.rank() == 0;
    placed_.push_back({scalar ? 0 : box.offset[0], scalar ? 1 : box.offset[0] + box.size[0],
                       static_cast<std::uint32_t>(c)});
  }
  std::ranges::sort(placed_, [](const Placed& a, const Placed& b) {
    return std::tie(a.begin, a.chunk) < std::tie(b.begin, b.chunk);
  });
  std::int64_t reach = 0;
  for (Placed& placed : placed_) reach = placed.reach = std::max(reach, placed.reach);
  sorted_ = true;
}

std::vector<std::size_t> TensorSource::numbers_of_chunks_that_meet(const Box& box) {
  if (!sorted_) sort_chunks();
  const std::int64_t begin = box.offset.empty() ? 0 : box.offset[0];
  const std::int64_t end = box.offset.empty() ? 1 : begin + box.size[0];
  std::vector<std::size_t> met;
  auto at = std::ranges::partition_point(
      placed_, [&](const Placed& placed) { return placed.reach <= begin; });
  for (; at != placed_.end() && at->begin < end; ++at) {
    if (intersect(tensor().chunks.box(at->chunk), box.view())) met.push_back(at->chunk);
  }
  return met;
}

std::vector<SourceChunk> TensorSource::chunks_that_meet(const Box& box) {
  std::vector<SourceChunk> met;
  for (const std::size_t number : numbers_of_chunks_that_meet(box)) {
    const BoxView chunk = tensor().chunks.box(number);
    met.push_back(
        {{{chunk.offset.begin(), chunk.offset.end()}, {chunk.size.begin(), chunk.size.end()}},
         cache_->get(checkpoint_, tensor_, number)});
  }
  return met;
}

bool TensorSource::expect(const Box& box, ElementRange part) {
  std::vector<Box> boxes = boxes_of(box.size, part);
  for (Box& inner : boxes) {
    for (std::size_t d = 0; d < inner.offset.size(); ++d) inner.offset[d] += box.offset[d];
  }
  bool more = false;
  for (const std::size_t number : numbers_of_chunks_that_meet(box))
    more = expect_parts(checkpoint_, tensor(), number, boxes) || more;
  return more;
}

TargetPiece box_piece(std::shared_ptr<TensorSource> source, Box box, DType dtype) {
  TargetPiece piece;
  piece.key = source->tensor().key;
  piece.dtype = source->tensor().dtype;
  if (dtype != piece.dtype) piece.cast_to = dtype;
  piece.box = box;
  piece.sources = [source, box] { return source->chunks_that_meet(box); };
  piece.expect = [source = std::move(source), box = std::move(box)](ElementRange part) {
    return source->expect(box, part);
  };
  return piece;
}

TargetPiece storage_piece(const Checkpoint& checkpoint, const StorageRef& storage) {
  TargetPiece piece;
  piece.key = "storage " + storage.key;
  piece.dtype = storage.dtype;
  piece.box = whole_box(std::vector<std::int64_t>{static_cast<std::int64_t>(storage.numel)});
  if (storage.untyped && checkpoint.storage(storage).swap_bytes) {
    throw Error(ErrorCode::kUnsupported, checkpoint.description().path, ": storage ",
                quote(storage.key), " is big-endian, and the size of its elements is unknown");
  }
  piece.sources = [&checkpoint, storage, box = piece.box] {
    return std::vector<SourceChunk>{{box, checkpoint.storage(storage)}};
  };
  return piece;
}

}  // namespace fsdp::formats
