// SPDX-License-Identifier: Apache-2.0
// Runs of a flattened tensor as regions of the tensor itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/state/model/box.h"

namespace fsdp::formats {

// Returns elements begin to end of a tensor laid out row-major, as boxes in the order of their
// elements; each box is itself one run.  At most 2 * rank - 1 boxes; none if the range is empty.
// Requires: 0 <= begin <= end <= numel of the shape.
std::vector<Box> flat_range_boxes(std::span<const std::int64_t> shape, std::int64_t begin,
                                  std::int64_t end);

}  // namespace fsdp::formats
