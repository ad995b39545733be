// SPDX-License-Identifier: Apache-2.0
// Reads a tensor of a checkpoint into memory box by box, its chunks joined and their checksums
// checked: what diff, stats, extract and writers without random access use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/model/box.h"
#include "formats/model/copy.h"

namespace fsdp::formats {

// The tensors of `pieces` (file and offset unused) are cut into blocks: boxes that are one run of
// the dense row-major tensor, of at most `block_bytes` bytes.  `visit` gets each once, elements
// transformed; within a piece in ascending order where threads is 1, otherwise in any order and
// from several threads at once (`thread` counts from 0).  Every storage read from is checked
// against its CRC; a piece's `done` is called when its blocks were visited and its checksums
// matched. Throws: kZipCrc, kHole, kInterrupted, what reading and `visit` throw.
struct TensorBlock {
  std::size_t piece;                 // position in `pieces`
  std::uint64_t offset;              // in bytes, from the start of the dense piece
  std::span<const std::byte> bytes;  // valid during the call
  unsigned thread;
};
struct VisitOptions {
  unsigned threads = 1;
  std::uint64_t max_buffer_bytes = 64U << 20U;  // of all threads together
  std::uint64_t block_bytes = 1U << 20U;
  std::function<void(std::uint64_t)> on_progress;  // bytes visited; one thread at a time
  std::function<bool()> cancelled;
};
// Returns what copy_pieces returns.
CopyResult visit_pieces(std::span<const TargetPiece> pieces, const VisitOptions& options,
                        const std::function<void(const TensorBlock&)>& visit);

// The same over two lists of pieces of equal boxes: blocks of both, side by side.  The dtypes may
// differ; blocks then cover the same elements.
struct TensorBlockPair {
  std::size_t piece;
  std::uint64_t first;  // element, from the start of the dense piece
  std::span<const std::byte> left;
  std::span<const std::byte> right;
  unsigned thread;
};
CopyResult visit_pairs(std::span<const TargetPiece> left, std::span<const TargetPiece> right,
                       const VisitOptions& options,
                       const std::function<void(const TensorBlockPair&)>& visit);

}  // namespace fsdp::formats
