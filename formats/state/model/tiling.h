// SPDX-License-Identifier: Apache-2.0
// Finds chunks of a tensor that share elements, and regions that no chunk covers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/state/model/box.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

struct Tiling {
  std::vector<std::pair<std::size_t, std::size_t>>
      overlaps;             // pairs of chunks, the lower one first
  std::optional<Box> hole;  // a region that no chunk touches, the first that was found
  bool decided = true;      // false: the search ended before it had seen everything
};

// Examines these chunks of `chunks`, which lie inside the tensor and have elements.
//
// Chunks that are cut along one dimension, like FSDP's, are sorted along it.  Otherwise the tensor
// is cut at the chunks' borders until a region is covered by one chunk or by none: n log n for
// grids and other tilings that can be cut without splitting many chunks.  For chunks made to be
// split everywhere, the search ends after some hundred steps for each chunk and dimension.
//
// At most `max_overlaps` pairs are named; the search goes on for a hole.
// Throws: kInterrupted.
Tiling look_at_tiling(std::span<const std::int64_t> shape, const ChunkList& chunks,
                      std::vector<std::size_t> which, std::size_t max_overlaps);

}  // namespace fsdp::formats
