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
  // Bytes of each side; valid during the call, and those of the first side while its owner is held,
  // if it has one.
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
  // Read pieces of up to this many files in turns, one block of each; 1: piece after piece.  Where
  // reads are hinted and kept in memory it is 1, because memory for the hints is given in order.
  std::size_t files_at_once = 1;
  // Blocks hold as many elements as fit into this many bytes in the widest dtype of the piece on
  // any side; block k of a piece starts at k times that, regardless of threads and memory.
  std::uint64_t block_bytes = 1U << 20U;
  // If chunks interleave, several blocks are read at once, of at most this many bytes.
  std::uint64_t max_slab_bytes = 16U << 20U;
  // For one side without targets: blocks have an owner, and reading goes on while up to this many
  // are still held elsewhere.
  unsigned kept_blocks = 0;
  bool verify = true;  // compare checksums
  // Return storages of which only parts were read; else read them separately.
  bool partial = false;
  // Called once for each piece of the only side, by one thread at a time, when the piece's turn
  // comes: the piece is read to that target, and `bytes` of its blocks lie there.  Empty: read to
  // buffers.
  std::function<BlockTarget(std::size_t piece)> target;
  std::function<bool()> cancelled;
  // The part of each piece to read; null: all of it.  Blocks begin where the part does, and pieces
  // without elements in it are left out.
  std::function<ElementRange(std::size_t piece)> part;
  // The checksums of the first side's storages, which the caller finishes; null: they are compared
  // here, and `verify`, `partial` and `team` say how.
  StorageChecks* checks = nullptr;
  // Who reads the other parts: checksums of storages are joined, and `unchecked_bytes` summed.
  Team* team = nullptr;
};

struct BlockResult {
  std::uint64_t unchecked_bytes = 0;  // of storages without a checksum
  std::vector<PartialRead> partial;   // if requested
};

// Calls `use` once for each block of every piece; on one thread in ascending order of the blocks of
// each piece and, with one file at once, of the pieces; otherwise from several threads at once.
// `sides` are one or two lists of pieces, element by element of equal sizes.  `piece_done` is
// called, by one thread at a time, once for each piece in their order of completion: its blocks
// were used, and the checksums of storages read whole match.  Every other storage is checked or
// returned at the end.  There are fewer threads if the memory is too small for their buffers.
// Throws: kZipCrc, kHole, kInterrupted, what reading, `use` and `piece_done` throw.
BlockResult read_blocks(std::span<const std::span<const TargetPiece>> sides,
                        const BlockOptions& options,
                        const std::function<void(const ReadBlock&)>& use,
                        const std::function<void(std::size_t piece)>& piece_done);

}  // namespace fsdp::formats
