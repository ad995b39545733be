// SPDX-License-Identifier: Apache-2.0
// Checks that the chunks of a tensor tile it: inside its bounds, no overlap, no hole.
#pragma once

#include "formats/state/model/finding.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// Appends the faults of the chunks of `tensor`: kBounds, kOverlap (both boxes), kHole (a box that
// no chunk covers), kLimitNodes (chunks made so that it cannot be decided, see tiling.h).  Chunks
// without elements are ignored.  Throws: kInterrupted.
void check_coverage(const TensorEntry& tensor, Findings& findings);

// Appends kExtent if a location reaches past the end of its file, and kShardMissing once for every
// missing file that a location names, with the number of tensors that are whole.
void check_extents(const Index& index, Findings& findings);

// Returns how many bytes of elements the files of an index may expand to: 128 MiB, plus 64 times
// their own.
std::uint64_t expansion_limit(const Index& index);

// Views may repeat elements without end (stride 0), and many tensors may view the same ones: a
// kilobyte can expand to more than any disk holds.  Code that reads every tensor calls this first.
// Throws: kLimitRatio naming the largest tensor.
void check_expansion(const Index& index, const std::string& path);

// Appends a warning, kName, for every key that is empty or has an empty part, or that holds NUL,
// control characters, invisible characters, or bytes that are not UTF-8.
void check_names(const Index& index, Findings& findings);

}  // namespace fsdp::formats
