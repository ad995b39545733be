// SPDX-License-Identifier: Apache-2.0
// How the chunks of a tensor lie: which share elements, and what none of them covers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/model/box.h"
#include "formats/model/index.h"

namespace fsdp::formats {

struct Tiling {
  std::vector<std::pair<std::size_t, std::size_t>>
      overlaps;             // pairs of chunks, the lower one first
  std::optional<Box> hole;  // a region that no chunk touches, the first that was found
  bool decided = true;      // false: the search ended before it had seen everything
};

// Looks at these chunks of `chunks`, all inside the tensor and with elements.
//
// Chunks that are cut along one dimension, as FSDP's are, are sorted along it.  Others are cut
// apart with the tensor, at their own borders, until a region is covered by one chunk or by none: n
// log n for grids and whatever else can be cut without splitting many chunks.  Sets made to be
// split everywhere end the search after some hundred steps for each chunk and dimension.
//
// At most `max_overlaps` pairs are named; the search goes on for a hole.
// Throws: kInterrupted.
Tiling look_at_tiling(std::span<const std::int64_t> shape, const ChunkList& chunks,
                      std::vector<std::size_t> which, std::size_t max_overlaps);

}  // namespace fsdp::formats
