// SPDX-License-Identifier: Apache-2.0
// Cuts pieces into blocks and reads them on several threads in bounded memory: the common part of
// copying, visiting and filling of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "formats/state/model/copy.h"
#include "formats/state/model/division.h"
#include "formats/state/model/partial_reads.h"

namespace fsdp::formats {

class StorageChecks;

// Elements [first, first + count) of the dense row-major piece, cast if the piece asks for it.
struct ReadBlock {
  std::size_t piece;
  std::uint64_t first;
  std::uint64_t count;
  // Bytes of each side, valid during the call.  Those of the first side stay valid while `owner`,
  // if there is one, is held.
  std::array<std::span<const std::byte>, 2> bytes;
  std::shared_ptr<const void> owner;
  std::optional<std::uint32_t> crc;  // of the first side's bytes, if reading computed it
  unsigned thread;
};

// The memory that a piece is read into.
struct BlockTarget {
  std::span<std::byte> out;  // holds the dense row-major piece, cast if the piece asks for it
  bool alone = false;        // no other process reads the same bytes
};

struct BlockOptions {
  unsigned threads = 1;
  std::uint64_t max_buffer_bytes = 64U << 20U;  // of all threads together
  // Read pieces of up to this many files in turns, one block of each; 1: piece after piece.  If
  // reads are hinted and kept in memory, 1 is used, because memory for the hints is given in order.
  std::size_t files_at_once = 1;
  // Blocks hold as many elements as fit into this many bytes in the widest dtype of the piece on
  // any side.  Block k of a piece begins at k times as many elements, regardless of threads and
  // memory.
  std::uint64_t block_bytes = 1U << 20U;
  // If chunks interleave, several blocks are read at once, of at most this many bytes.
  std::uint64_t max_slab_bytes = 16U << 20U;
  // For one side without targets: blocks have an owner, and reading goes on while up to this many
  // are still held elsewhere.
  unsigned kept_blocks = 0;
  bool verify = true;  // compare checksums
  // Return the storages that were read only in part; false: read them separately.
  bool partial = false;
  // Returns the memory that a piece of the only side is read into; `bytes` of its blocks lie there.
  // Called once for each piece, by one thread at a time, when the piece's turn comes.  Empty:
  // pieces are read to buffers.
  std::function<BlockTarget(std::size_t piece)> target;
  std::function<bool()> cancelled;
  // The part of each piece to read; null: all of it.  Blocks begin where the part does, and pieces
  // without elements in it are left out.
  std::function<ElementRange(std::size_t piece)> part;
  // The checksums of the first side's storages, which the caller finishes; null: they are compared
  // here, and `verify`, `partial` and `team` say how.
  StorageChecks* checks = nullptr;
  // The team that reads the other parts: checksums of storages are joined, and `unchecked_bytes`
  // summed.  Never null.
  Team* team = &this_process();
};

struct BlockResult {
  std::uint64_t unchecked_bytes = 0;  // of storages without a checksum
  std::vector<PartialRead> partial;   // if requested
};

// Calls `use` once for each block of every piece.  On one thread, the blocks of each piece come in
// ascending order and, with one file at once, so do the pieces; otherwise several threads call
// `use` at once.  `sides` are one or two lists of pieces, element by element of equal sizes.
// `piece_done` is called once for each piece in their order of completion, by one thread at a time:
// its blocks were used, and the checksums of storages that were read whole match.  Every other
// storage is checked or returned at the end.  There are fewer threads if the memory is too small
// for their buffers.
// Throws: kZipCrc, kHole, kInterrupted, what reading, `use` and `piece_done` throw.
BlockResult read_blocks(std::span<const std::span<const TargetPiece>> sides,
                        const BlockOptions& options,
                        const std::function<void(const ReadBlock&)>& use,
                        const std::function<void(std::size_t piece)>& piece_done);

}  // namespace fsdp::formats
