// SPDX-License-Identifier: Apache-2.0
// Reads boxes of tensors straight into memory that is already there.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "formats/model/block_schedule.h"
#include "formats/model/copy.h"
#include "formats/model/partial_reads.h"

namespace fsdp::formats {

struct MemoryPiece {
  TargetPiece piece;  // file and offset unused
  // Where it goes.  Called once, when the piece's turn comes.
  std::function<BlockTarget()> target;
  // Called once it is filled.  Empty: not called.
  std::function<void()> done;
};

inline constexpr unsigned kReadThreads = 4;

// Fills the pieces on a few threads, about in their order; `target` and `done` are called by one
// thread at a time.  With `verify` every storage that is read whole is compared with its CRC as
// soon as it is, and what was read of others is returned.
// Memory: up to 38 MiB a thread, of which there are kReadThreads; of `target`s that are not yet
// `done` as many.
// Throws: kZipCrc, kHole, what reading, `target` and `done` throw.
std::vector<PartialRead> read_into_memory(std::span<const MemoryPiece> pieces, bool verify);

}  // namespace fsdp::formats
