// SPDX-License-Identifier: Apache-2.0
// Cuts pieces into blocks and reads them on several threads in bounded memory: what copying,
// visiting and filling of memory share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "formats/model/copy.h"
#include "formats/model/partial_reads.h"

namespace fsdp::formats {

// Elements [first, first + count) of the dense row-major piece, cast where the piece says so.
struct ReadBlock {
  std::size_t piece;
  std::uint64_t first;
  std::uint64_t count;
  // Of each side; valid during the call, the first side's as long as its owner is held, if it has
  // one.
  std::array<std::span<const std::byte>, 2> bytes;
  std::shared_ptr<const void> owner;
  std::optional<std::uint32_t> crc;  // of the first side's bytes, where reading computed it
  unsigned thread;
};

// Where a piece goes as it is read.
struct BlockTarget {
  std::span<std::byte> out;  // holds the dense row-major piece, cast where the piece says so
  bool alone = false;        // no other process reads the same bytes
};

struct BlockOptions {
  unsigned threads = 1;
  std::uint64_t max_buffer_bytes = 64U << 20U;  // of all threads together
  // Blocks hold as many elements as fit into so many bytes in the widest dtype the piece has on any
  // side; block k of a piece starts at k times that, whatever the threads and the memory.
  std::uint64_t block_bytes = 1U << 20U;
  // Where chunks interleave, several blocks are read at once, of at most so many bytes.
  std::uint64_t max_slab_bytes = 16U << 20U;
  // Of one side without targets: blocks have an owner, and where so many are held by nobody who
  // reads, reading goes on.
  unsigned kept_blocks = 0;
  bool verify = true;  // compare checksums
  // Storages of which only parts were read are returned; else they are read on their own.
  bool partial = false;
  // Called once for each piece of the only side, by one thread at a time, when the piece's turn
  // comes: what is read goes there, and `bytes` of its blocks lie there.  Empty: to buffers.
  std::function<BlockTarget(std::size_t piece)> target;
  std::function<bool()> cancelled;
};

struct BlockResult {
  std::uint64_t unchecked_bytes = 0;  // of storages that carry no checksum
  std::vector<PartialRead> partial;   // where they are asked for
};

// Calls `use` once for each block of every piece; on one thread in ascending order, otherwise from
// several threads at once.  `sides` are one or two lists of pieces, element by element of equal
// sizes.  `piece_done` is called, by one thread at a time, once for each piece in their order of
// completion: its blocks were used, and the checksums of storages read whole match.  Every other
// storage is checked or returned at the end.  Threads are fewer where the memory is too small for
// their buffers. Throws: kZipCrc, kHole, kInterrupted, what reading, `use` and `piece_done` throw.
BlockResult read_blocks(std::span<const std::span<const TargetPiece>> sides,
                        const BlockOptions& options,
                        const std::function<void(const ReadBlock&)>& use,
                        const std::function<void(std::size_t piece)>& piece_done);

}  // namespace fsdp::formats
