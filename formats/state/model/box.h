// SPDX-License-Identifier: Apache-2.0
// Axis-aligned regions of a tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp::formats {

// A region of a tensor, in elements: index i lies inside iff offset[d] <= i[d] < offset[d] +
// size[d] for every dimension d.  Rank 0 holds one element.  Lifetime: the view does not own its
// numbers.
struct BoxView {
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> size;
  std::size_t rank() const { return size.size(); }
};

// A region that owns its numbers.
struct Box {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> size;
  BoxView view() const { return {offset, size}; }
};

// Elements [first, first + count) of a box, counted row-major.
struct ElementRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// Returns the box of a whole tensor of that shape.
Box whole_box(std::span<const std::int64_t> shape);

// Returns the number of elements inside.
// Requires: sizes are not negative and their product was checked (checked_numel).
std::uint64_t volume(BoxView box);

// Returns the number of elements of a tensor of that shape.  Requires: as for volume.
inline std::uint64_t numel_of(std::span<const std::int64_t> shape) {
  return volume({shape, shape});
}

// Returns the common part of `a` and `b`, in their coordinates; nullopt if they do not intersect.
// Boxes of rank 0 always do.  Requires: the same rank.
std::optional<Box> intersect(BoxView a, BoxView b);

// Returns the range of elements of `box`, counted in it, from the first to the last one that lies
// in `part`; nothing if they do not intersect.  Requires: the same rank.
std::optional<ElementRange> reach_in(BoxView box, BoxView part);

// "[0:4, 8:16]"; "[]" for rank 0.
std::string box_text(BoxView box);

// Strides, in elements, of a dense row-major tensor.
std::vector<std::int64_t> row_major_strides(std::span<const std::int64_t> shape);

}  // namespace fsdp::formats
