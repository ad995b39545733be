// SPDX-License-Identifier: Apache-2.0
// Whether the chunks of a tensor tile it: inside its bounds, no overlap, no hole.
#pragma once

#include "formats/model/finding.h"
#include "formats/model/index.h"

namespace fsdp::formats {

// Appends what is wrong with the chunks of `tensor`: kBounds, kOverlap (both boxes), kHole (a box
// that no chunk covers), kLimitNodes (chunks made so that nobody can tell, see tiling.h).  Chunks
// of no elements are ignored.  Throws: kInterrupted.
void check_coverage(const TensorEntry& tensor, Findings& findings);

// Appends kExtent where a location reaches past the end of its file, and kShardMissing once for
// every file that is missing and that something lies in.
void check_extents(const Index& index, Findings& findings);

// How many bytes of elements the files of an index may stand for: 128 MiB, and 64 times their own.
std::uint64_t expansion_limit(const Index& index);

// Views may repeat elements without end (stride 0), and many tensors may view the same ones: a
// kilobyte can stand for more than any disk holds.  Whoever reads every tensor asks this first.
// Throws: kLimitRatio naming the largest tensor.
void check_expansion(const Index& index, const std::string& path);

}  // namespace fsdp::formats
