// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/tiling.h"

#include <algorithm>
#include <cstdint>

#include "formats/bytes/base/interrupt.h"

namespace fsdp::formats {
namespace {

// Steps for each chunk and dimension: a grid of n chunks takes some 4 log n.  More than a trainer's
// tiling needs, and less than a second for all chunks that fit into a megabyte.
constexpr std::uint64_t kStepsPerNumber = 300;
constexpr std::uint64_t kFreeSteps = 100'000;

std::int64_t begin_of(BoxView box, std::size_t d) {
  return box.offset[d];
}
std::int64_t end_of(BoxView box, std::size_t d) {
  return box.offset[d] + box.size[d];
}

// Returns the only dimension along which chunks are smaller than the tensor; nothing if there are
// several, 0 if there is none.
std::optional<std::size_t> only_cut_dimension(std::span<const std::int64_t> shape,
                                              const ChunkList& chunks,
                                              const std::vector<std::size_t>& which) {
  std::optional<std::size_t> cut;
  for (const std::size_t c : which) {
    const BoxView box = chunks.box(c);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (box.size[d] == shape[d]) continue;
      if (cut && *cut != d) return std::nullopt;
      cut = d;
    }
  }
  return cut.value_or(0);
}

class Search {
 public:
  Search(std::span<const std::int64_t> shape, const ChunkList& chunks, std::size_t max_overlaps)
      : chunks_(chunks), max_overlaps_(max_overlaps), region_(whole_box(shape)) {}

  Tiling take() {
    std::ranges::sort(result_.overlaps);
    return std::move(result_);
  }

  // Handles chunks that differ along dimension `d` only.
  void sweep(std::size_t d, std::vector<std::size_t> which) {
    const auto begin = [&](std::size_t c) { return begin_of(chunks_.box(c), d); };
    if (!std::ranges::is_sorted(which, {}, begin)) std::ranges::stable_sort(which, {}, begin);
    std::int64_t covered = 0;
    std::size_t last = 0;  // the chunk that reaches up to `covered`
    for (const std::size_t c : which) {
      const BoxView box = chunks_.box(c);
      if (begin_of(box, d) > covered) note_gap(d, covered, begin_of(box, d));
      if (begin_of(box, d) < covered) note_overlap(last, c);
      if (end_of(box, d) <= covered) continue;
      covered = end_of(box, d);
      last = c;
    }
    if (covered < region_.size[d]) note_gap(d, covered, region_.size[d]);
  }

  // Handles any chunks.
  void cut_apart(std::vector<std::size_t> which) {
    const std::uint64_t numbers = which.size() * std::max<std::size_t>(1, region_.size.size());
    steps_left_ = kFreeSteps + numbers * kStepsPerNumber;
    look(std::move(which));
  }

 private:
  // Returns whether the search may end.
  bool done() const {
    return !result_.decided || (result_.hole && result_.overlaps.size() >= max_overlaps_);
  }

  void note_gap(std::size_t d, std::int64_t begin, std::int64_t end) {
    if (result_.hole) return;
    result_.hole = region_;
    if (region_.size.empty()) return;
    result_.hole->offset[d] = begin;
    result_.hole->size[d] = end - begin;
  }

  void note_overlap(std::size_t a, std::size_t b) {
    const std::pair<std::size_t, std::size_t> pair = std::minmax(a, b);
    if (result_.overlaps.size() >= max_overlaps_) return;
    if (std::ranges::find(result_.overlaps, pair) == result_.overlaps.end())
      result_.overlaps.push_back(pair);
  }

  bool covers_region(std::size_t c) const {
    const BoxView box = chunks_.box(c);
    for (std::size_t d = 0; d < region_.size.size(); ++d) {
      if (begin_of(box, d) > region_.offset[d] ||
          end_of(box, d) < region_.offset[d] + region_.size[d])
        return false;
    }
    return true;
  }

  struct Cut {
    std::size_t dimension = 0;
    std::int64_t at = 0;
  };

  // Returns the cut that leaves the fewest chunks on its fuller side, out of the middle border of
  // each dimension.  Requires: some chunk does not cover the region.
  Cut best_cut(const std::vector<std::size_t>& which) {
    Cut best;
    std::size_t least = SIZE_MAX;
    for (std::size_t d = 0; d < region_.size.size(); ++d) {
      const std::int64_t low = region_.offset[d];
      const std::int64_t high = low + region_.size[d];
      borders_.clear();
      for (const std::size_t c : which) {
        const BoxView box = chunks_.box(c);
        if (begin_of(box, d) > low) borders_.push_back(begin_of(box, d));
        if (end_of(box, d) < high) borders_.push_back(end_of(box, d));
      }
      if (borders_.empty()) continue;
      const auto middle = borders_.begin() + static_cast<std::ptrdiff_t>(borders_.size() / 2);
      std::nth_element(borders_.begin(), middle, borders_.end());
      std::size_t below = 0;
      std::size_t above = 0;
      for (const std::size_t c : which) {
        const BoxView box = chunks_.box(c);
        below += begin_of(box, d) < *middle ? 1 : 0;
        above += end_of(box, d) > *middle ? 1 : 0;
      }
      // The sum counts a split chunk twice.
      const std::size_t cost = std::max(below, above) + (below + above - which.size());
      if (cost >= least) continue;
      least = cost;
      best = {d, *middle};
    }
    return best;
  }

  // Examines the chunks that touch region_.  Each level halves the borders of a dimension, so the
  // depth is some hundred at most.
  void look(std::vector<std::size_t> which) {
    throw_if_interrupted();
    if (done()) return;
    if (which.empty()) return note_gap(0, region_begin(), region_begin() + region_length());
    const std::uint64_t steps = which.size() * std::max<std::size_t>(1, region_.size.size());
    if (steps > steps_left_) {
      result_.decided = false;
      return;
    }
    steps_left_ -= steps;
    const auto cover = std::ranges::find_if(which, [&](std::size_t c) { return covers_region(c); });
    if (cover != which.end()) {
      for (const std::size_t c : which) {
        if (result_.overlaps.size() >= max_overlaps_) return;
        if (c != *cover) note_overlap(*cover, c);
      }
      return;
    }
    const Cut cut = best_cut(which);
    std::vector<std::size_t> above;
    std::vector<std::size_t> below;
    for (const std::size_t c : which) {
      const BoxView box = chunks_.box(c);
      if (begin_of(box, cut.dimension) < cut.at) below.push_back(c);
      if (end_of(box, cut.dimension) > cut.at) above.push_back(c);
    }
    which = {};
    std::int64_t& offset = region_.offset[cut.dimension];
    std::int64_t& size = region_.size[cut.dimension];
    const std::int64_t begin = offset;
    const std::int64_t length = size;
    size = cut.at - begin;
    look(std::move(below));
    offset = cut.at;
    size = begin + length - cut.at;
    look(std::move(above));
    offset = begin;
    size = length;
  }

  std::int64_t region_begin() const { return region_.offset.empty() ? 0 : region_.offset[0]; }
  std::int64_t region_length() const { return region_.size.empty() ? 0 : region_.size[0]; }

  const ChunkList& chunks_;
  const std::size_t max_overlaps_;
  Box region_;  // the region being examined
  std::vector<std::int64_t> borders_;
  std::uint64_t steps_left_ = 0;
  Tiling result_;
};

}  // namespace

Tiling look_at_tiling(std::span<const std::int64_t> shape, const ChunkList& chunks,
                      std::vector<std::size_t> which, std::size_t max_overlaps) {
  Search search(shape, chunks, max_overlaps);
  const auto cut = only_cut_dimension(shape, chunks, which);
  if (cut && !shape.empty()) {
    search.sweep(*cut, std::move(which));
  } else {
    search.cut_apart(std::move(which));
  }
  return search.take();
}

}  // namespace fsdp::formats
