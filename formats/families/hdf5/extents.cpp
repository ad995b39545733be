// SPDX-License-Identifier: Apache-2.0
// The places of a description's data in the file and in the tensor.
#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hdf5/description.h"

namespace fsdp::formats::hdf5 {

std::optional<ChunkRuns> runs_of(const Dataset& dataset) {
  const std::size_t rank = dataset.shape.size();
  std::size_t cut = 0;
  while (cut + 1 < rank && dataset.chunk_shape[cut] == 1) ++cut;
  std::uint64_t row = item_bytes(dataset.dtype);
  for (std::size_t d = cut + 1; d < rank; ++d) {
    if (dataset.chunk_shape[d] != dataset.shape[d]) return std::nullopt;
    row *= static_cast<std::uint64_t>(dataset.shape[d]);
  }
  ChunkRuns runs;
  runs.run_bytes = row * static_cast<std::uint64_t>(dataset.chunk_shape[cut]);
  runs.group_bytes = row * static_cast<std::uint64_t>(dataset.shape[cut]);
  runs.group = (runs.group_bytes + runs.run_bytes - 1) / runs.run_bytes;
  return runs;
}

std::vector<Extent> data_extents(std::span<const Dataset> datasets) {
  std::vector<Extent> extents;
  for (const Dataset& dataset : datasets) {
    if (dataset.storage == Dataset::Storage::kContiguous)
      extents.push_back({dataset.address, dataset.bytes()});
    for (const StoredChunk& chunk : dataset.chunks) {
      if (chunk.bytes != 0) extents.push_back({chunk.address, chunk.bytes});
    }
  }
  const auto key = [](const Extent& e) { return std::pair(e.begin, e.bytes); };
  std::sort(extents.begin(), extents.end(),
            [&](const Extent& a, const Extent& b) { return key(a) < key(b); });
  const auto last = std::unique(extents.begin(), extents.end(),
                                [&](const auto& a, const auto& b) { return key(a) == key(b); });
  extents.erase(last, extents.end());
  return extents;
}

std::vector<Extent> structure_extents(std::span<const Extent> data, std::uint64_t file_bytes) {
  std::vector<Extent> between;
  std::uint64_t at = 0;
  for (const Extent& extent : data) {
    if (extent.begin < at) {
      throw Error(
          ErrorCode::kExtentOverlap,
          cat("data at byte ", extent.begin, " begin inside other data, which end at byte ", at));
    }
    if (extent.begin > at) between.push_back({at, extent.begin - at});
    at = extent.begin + extent.bytes;
  }
  if (at < file_bytes) between.push_back({at, file_bytes - at});
  return between;
}

}  // namespace fsdp::formats::hdf5
