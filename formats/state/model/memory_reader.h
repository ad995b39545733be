// SPDX-License-Identifier: Apache-2.0
// Reads boxes of tensors straight into existing memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "formats/state/model/block_schedule.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/partial_reads.h"

namespace fsdp::formats {

struct MemoryPiece {
  TargetPiece piece;  // file and offset unused
  // Returns the target memory.  Called once, when the piece's turn comes.
  std::function<BlockTarget()> target;
  // Called when the memory is filled.  Empty: not called.
  std::function<void()> done;
};

inline constexpr unsigned kReadThreads = 4;

struct MemoryReadOptions {
  unsigned threads = kReadThreads;
  // Read storages that were read in part once more in full and compare them, instead of returning
  // the parts.
  bool whole = false;
  // Called now and then; true ends the reading with kInterrupted.
  std::function<bool()> cancelled;
};

// Fills the pieces on a few threads, about in their order; `target` and `done` are called by one
// thread at a time.  With `verify` every storage that is read whole is compared with its CRC at
// once, and the parts read of other storages are returned.
// Memory: up to 38 MiB for each thread; as many pieces may have a `target` and not be `done`.
// Throws: kZipCrc, kHole, kInterrupted, what reading, `target` and `done` throw.
std::vector<PartialRead> read_into_memory(std::span<const MemoryPiece> pieces, bool verify,
                                          const MemoryReadOptions& how = {});

}  // namespace fsdp::formats
