// SPDX-License-Identifier: Apache-2.0
// Whether the chunks of a tensor tile it: inside its bounds, no overlap, no hole.
#pragma once

#include "formats/model/finding.h"
#include "formats/model/index.h"

namespace fsdp::formats {

// Appends what is wrong with the chunks of `tensor`: kBounds, kOverlap (both boxes), kHole (a box
// that no chunk covers).  Chunks of no elements are ignored.  A sweep over the dimension with the
// most cuts: n log n for chunks cut along one dimension, and n times the chunks met at once for
// grids.
void check_coverage(const TensorEntry& tensor, Findings& findings);

// Appends kExtent where a location reaches past the end of its file, and kShardMissing once for
// every file that is missing and that something lies in.
void check_extents(const Index& index, Findings& findings);

}  // namespace fsdp::formats
