// SPDX-License-Identifier: Apache-2.0
// Matrices with rows that are scaled or replaced.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// Returns a matrix of shape[0] rows, scaled to the lengths `magnitudes` (DoRA): each element
// becomes (magnitude / length of its row) * element, in float64 for float64 and in float32 for any
// other type.  Lengths are summed up in float64, in order.  `by_column`: scales columns instead of
// rows. Reads the matrix once when it is opened, and once more. Requires: a magnitude for each row
// or column; the matrix has elements.
Array with_lengths(const Array& matrix, const Array& magnitudes, bool by_column);

// Returns a matrix of shape[0] rows, cast to `to`, whose rows at `places` are replaced by `rows`.
// If a place occurs twice, its last row counts.  Requires: each place is a row of the matrix.
Array with_rows(const Array& matrix, const std::vector<std::uint64_t>& places, const Array& rows,
                DType to);

// Returns the rows of a matrix with those numbers, in that order; a row may come several times.
// Requires: two dimensions; the matrix has the rows.
Array chosen_rows(const Array& matrix,
                  const std::shared_ptr<const std::vector<std::uint32_t>>& rows);

}  // namespace fsdp::formats::arrays
