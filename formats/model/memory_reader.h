// SPDX-License-Identifier: Apache-2.0
// Reads boxes of tensors straight into memory that is already there.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "formats/model/copy.h"
#include "formats/model/partial_reads.h"

namespace fsdp::formats {

struct MemoryPiece {
  TargetPiece piece;         // file and offset unused
  std::span<std::byte> out;  // holds the dense row-major box, cast where the piece says so
  bool alone = false;        // no other process reads the same bytes
};

// Fills the pieces in their order, on this thread; with `verify` every storage that is read whole
// is compared with its CRC as soon as it is, and what was read of others is returned.
// Memory: up to 40 MiB.  No byte is read twice.
// Throws: kZipCrc, kHole, what reading throws.  Requires: `out` has the size of the box in the
// dtype written.
std::vector<PartialRead> read_into_memory(std::span<const MemoryPiece> pieces, bool verify);

}  // namespace fsdp::formats
