// SPDX-License-Identifier: Apache-2.0
// Reads a tensor of a checkpoint into memory box by box, its chunks joined and their checksums
// checked: used by diff, stats, extract and writers without random access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/state/model/box.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// The tensors of `pieces` (file and offset unused) are cut into blocks: runs of the dense row-major
// piece of at most `block_bytes` bytes (as read, or as cast if that is wider).  The start of a
// block depends only on its dtypes and `block_bytes`, not on threads, memory, or how the tensor is
// stored.  `visit` gets each block once, with elements transformed and cast; in ascending order if
// threads is 1, otherwise in any order and from several threads at once (`thread` counts from 0).
// Every storage read is checked against its CRC before the call returns; blocks visited until then
// may be damaged.  Throws: kZipCrc, kHole, kInterrupted, what reading and `visit` throw.
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
  bool verify = true;  // compare checksums; storages read in part are read again whole
  std::function<void(std::uint64_t)> on_progress;  // bytes visited; one thread at a time
  // Called for each piece when all its blocks were visited (in order, if threads is 1); one thread
  // at a time.
  std::function<void(std::size_t piece)> on_piece;
  std::function<bool()> cancelled;
  // Divide the blocks among these processes, all of which make this call with the same pieces;
  // never null.  If there are others, `on_piece` is called for pieces of which this process had
  // blocks, and each process has to tell the others what it found.
  Team* team = &this_process();
};
// Returns the same as copy_pieces, without the CRCs; `bytes` are those visited.
CopyResult visit_pieces(std::span<const TargetPiece> pieces, const VisitOptions& options,
                        const std::function<void(const TensorBlock&)>& visit);

// Like visit_pieces, over two lists of pieces of equal sizes: blocks of both, side by side.  The
// dtypes may differ; blocks then cover the same elements.  Bytes of both sides count.
// Throws: kShape if sizes differ.
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
