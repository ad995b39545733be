// SPDX-License-Identifier: Apache-2.0
// Python's basic slicing of a tensor: w[0:4, :, -1], w[..., ::2].
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "formats/state/model/box.h"

namespace fsdp::cli {

// Selects the elements first, first + step, ... of a dimension, `count` of them.
struct DimensionSlice {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
  bool dropped = false;  // an index, not a range: the dimension disappears
};

struct Slice {
  std::vector<DimensionSlice> dimensions;  // of the tensor

  std::vector<std::int64_t> shape() const;  // of the result
  // Returns the smallest box that holds every element of the slice.
  formats::Box box() const;
  bool has_steps() const;
};

// Parses the text between the brackets, for a tensor of that shape: integers, ranges `a:b` and
// `a:b:c` with any part left out, one ellipsis, separated by commas; negative numbers count from
// the end.  Ranges are cut to the tensor, as in Python.
// Throws: kUsage naming the part: an index out of range, a step that is not positive, too many
// parts, anything else.
Slice parse_slice(std::string_view text, std::span<const std::int64_t> shape);

// Returns the slice of the whole tensor.
Slice whole_slice(std::span<const std::int64_t> shape);

}  // namespace fsdp::cli
