// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/tensor_reader.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/block_schedule.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMostSlabBytes = 16U << 20U;

BlockOptions block_options(const VisitOptions& options) {
  BlockOptions blocks;
  blocks.threads = options.threads;
  blocks.max_buffer_bytes = options.max_buffer_bytes;
  blocks.block_bytes = options.block_bytes;
  blocks.max_slab_bytes = kMostSlabBytes;
  blocks.verify = options.verify;
  blocks.cancelled = options.cancelled;
  blocks.team = options.team;
  return blocks;
}

// Counts visited bytes and reports them.
class Progress {
 public:
  explicit Progress(const VisitOptions& options) : options_(options) {}
  void add(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes;
    if (options_.on_progress) options_.on_progress(options_.team->progress(bytes_));
  }

 private:
  const VisitOptions& options_;
  std::mutex mutex_;
  std::uint64_t bytes_ = 0;
};

std::function<void(std::size_t)> piece_done(const VisitOptions& options) {
  if (options.on_piece) return options.on_piece;
  return [](std::size_t) {};
}

std::uint64_t bytes_of(std::span<const std::span<const TargetPiece>> sides) {
  std::uint64_t bytes = 0;
  for (const auto& side : sides) {
    for (const TargetPiece& piece : side)
      bytes += volume(piece.box.view()) * item_bytes(piece.written_dtype());
  }
  return bytes;
}

BlockResult read_parts(std::span<const std::span<const TargetPiece>> sides,
                       const VisitOptions& options,
                       const std::function<void(const ReadBlock&)>& use) {
  BlockOptions blocks = block_options(options);
  std::optional<Division> division;
  if (!options.team->alone()) {
    division.emplace(divide_visit(sides, options.block_bytes, options.team->size()));
    blocks.part = [&](std::size_t piece) { return division->range(options.team->rank(), piece); };
  }
  return read_blocks(sides, blocks, use, piece_done(options));
}

}  // namespace

CopyResult visit_pieces(std::span<const TargetPiece> pieces, const VisitOptions& options,
                        const std::function<void(const TensorBlock&)>& visit) {
  Progress progress(options);
  const std::span<const TargetPiece> sides[] = {pieces};
  const auto use = [&](const ReadBlock& block) {
    const std::uint64_t item = item_bytes(pieces[block.piece].written_dtype());
    visit({block.piece, block.first * item, block.bytes[0], block.thread});
    progress.add(block.bytes[0].size());
  };
  const BlockResult result = read_parts(sides, options, use);
  return {{}, bytes_of(sides), result.unchecked_bytes};
}

CopyResult visit_pairs(std::span<const TargetPiece> left, std::span<const TargetPiece> right,
                       const VisitOptions& options,
                       const std::function<void(const TensorBlockPair&)>& visit) {
  if (left.size() != right.size()) {
    throw Error(ErrorCode::kShape, "pairs of tensors: ", left.size(), " on the left, ",
                right.size(), " right");
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].box.size == right[i].box.size) continue;
    throw Error(ErrorCode::kShape, quote(left[i].key, 200), ": ", box_text(left[i].box.view()),
                " beside ", box_text(right[i].box.view()));
  }
  Progress progress(options);
  const std::span<const TargetPiece> sides[] = {left, right};
  const auto use = [&](const ReadBlock& block) {
    visit({block.piece, block.first, block.bytes[0], block.bytes[1], block.thread});
    progress.add(block.bytes[0].size() + block.bytes[1].size());
  };
  const BlockResult result = read_parts(sides, options, use);
  return {{}, bytes_of(sides), result.unchecked_bytes};
}

}  // namespace fsdp::formats
