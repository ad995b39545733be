// SPDX-License-Identifier: Apache-2.0
// Divides the bytes of many pieces among the members of a team: each gets one contiguous range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// Elements of one of several pieces.
struct PieceRange {
  std::size_t piece = 0;
  ElementRange range;
};

// A piece as a part of the line of bytes that is divided.
struct DividedPiece {
  std::uint64_t numel = 0;
  std::uint64_t element_bytes = 0;  // read and written for each element
  // Ranges begin at element 0 or where `shift` + the element's number is a multiple of `unit`.
  std::uint64_t unit = 1;
  std::uint64_t shift = 0;
};

class Division {
 public:
  // Shares are equal as far as the units allow.
  Division(std::span<const DividedPiece> pieces, std::size_t ranks);
  // Returns the part of a piece that `rank` has; none has a count of 0.
  ElementRange range(std::size_t rank, std::size_t piece) const;
  // Calls `use(piece, range)` for each piece of which `rank` has elements, in ascending order.
  void for_each(std::size_t rank,
                const std::function<void(std::size_t piece, ElementRange range)>& use) const;

 private:
  struct Border {
    std::size_t piece;
    std::uint64_t element;
  };
  std::vector<std::uint64_t> numels_;
  std::vector<Border> borders_;  // where each rank's range begins, and the end of the last
};

// Divides parts of the pieces of copy_pieces.  Each part counts as a piece of the division, with
// its elements from 0 on.  Borders lie at multiples of 1 MiB of the files that are written, or of
// their stripes if those are larger; at smaller multiples if an output is so small that shares
// would not be equal.
Division divide_copy(std::span<const TargetPiece> pieces, std::span<const PieceRange> parts,
                     std::size_t ranks, std::uint64_t stripe_bytes = 0);
// Divides the pieces of one or two sides that are visited in blocks (BlockOptions::block_bytes), at
// borders of blocks.
Division divide_visit(std::span<const std::span<const TargetPiece>> sides,
                      std::uint64_t block_bytes, std::size_t ranks);

// Throws kMismatch naming a member, unless all have the same pieces, files and places.
void agree_on_pieces(Team& team, std::span<const TargetPiece> pieces);

}  // namespace fsdp::formats
