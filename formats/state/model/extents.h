// SPDX-License-Identifier: Apache-2.0
// The work of a copy: what is left of it after an earlier run, and extents, the portions that are
// recorded in a journal one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/bytes/outputs/journal.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/division.h"
#include "formats/state/model/partial_reads.h"

namespace fsdp::formats {

// Elements of a piece that were written, and the CRC-32 of their bytes.
struct WrittenRange {
  std::size_t piece = 0;
  ElementRange range;
  std::uint32_t crc = 0;
};

// What an earlier run has written.
struct KeptWork {
  std::vector<WrittenRange> ranges;  // in ascending order, none overlaps another one
  std::vector<PartialRead> reads;    // of the source, for these ranges
  std::uint64_t unchecked_bytes = 0;
  std::uint64_t bytes = 0;  // of the ranges
};

// Returns the entries that lie whole in these pieces.  An entry that overlaps an earlier one is
// left out, and so done again.  Throws: kJson if an entry's reads of the source cannot be
// understood.
KeptWork kept_work(std::span<const TargetPiece> pieces, std::span<const JournalEntry> found);

// Returns what is left of the pieces without these ranges, in ascending order.  Without ranges each
// piece that has elements is one part.
std::vector<PieceRange> rest_of(std::span<const TargetPiece> pieces,
                                std::span<const WrittenRange> kept);

// Pieces [first_piece, first_piece + parts.size()), and the part of each; a part may be empty.
struct Extent {
  std::size_t first_piece = 0;
  std::vector<ElementRange> parts;
};

// Cuts work into extents, in its order.
class ExtentCutter {
 public:
  // `work`: parts of the pieces in ascending order.  Lifetime: both outlive the cutter.
  ExtentCutter(std::span<const TargetPiece> pieces, std::span<const PieceRange> work)
      : pieces_(pieces), work_(work) {}
  // Returns the next extent, of at most `most_bytes` of output unless that is less than an element;
  // nothing at the end.  Large parts are cut at multiples of 1 MiB of the file.
  std::optional<Extent> next(std::uint64_t most_bytes);

 private:
  std::span<const TargetPiece> pieces_;
  std::span<const PieceRange> work_;
  std::size_t at_ = 0;
  std::uint64_t done_ = 0;  // elements of the part at `at_`
};

}  // namespace fsdp::formats
