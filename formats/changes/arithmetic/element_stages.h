// SPDX-License-Identifier: Apache-2.0
// Stages between the tensor that is read and the one that is computed from it.  Each stage reads
// the elements of the stage before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"
#include "formats/changes/arithmetic/element_reader.h"

namespace fsdp::formats {

// Returns the elements of `source`, of type `dtype`.
std::unique_ptr<ElementReader> elements_of(std::shared_ptr<const ByteSource> source, DType dtype);

// Returns the elements of `reader` from `first` on.
std::unique_ptr<ElementReader> elements_from(std::shared_ptr<const ElementReader> reader,
                                             std::uint64_t first);

// Returns the `numel` elements of `reader`, cast to `to`.
std::shared_ptr<const ByteSource> cast_source(std::shared_ptr<const ElementReader> reader, DType to,
                                              std::uint64_t numel);

// Returns sources of equal size, one after the other.  Requires: at least one.
std::shared_ptr<const ByteSource> joined_source(
    std::vector<std::shared_ptr<const ByteSource>> parts);

// Returns a matrix [numel / columns, columns] with its rows scaled to the lengths `magnitudes`:
// each element becomes (magnitude / length of its row) * element, in float64 for float64 and in
// float32 for any other type.  Lengths are summed up in float64, in order.  `by_column`: scales
// columns instead of rows.
// Reads the matrix once in this call, and again when the result is read.
// Requires: a magnitude for each row or column; numel is not 0.
std::shared_ptr<const ByteSource> scaled_source(std::shared_ptr<const ElementReader> matrix,
                                                std::span<const double> magnitudes, bool by_column,
                                                std::uint64_t columns, std::uint64_t numel);

// Returns a matrix [numel / columns, columns] whose rows at `places` are replaced by `rows`, which
// lie one after the other in the type `to`.  If a place occurs twice, its last row counts.  Other
// rows are cast to `to`.
// Requires: each place is a row of the matrix.
std::shared_ptr<const ByteSource> with_rows(std::shared_ptr<const ElementReader> matrix,
                                            std::span<const std::uint64_t> places,
                                            std::vector<std::byte> rows, std::uint64_t columns,
                                            DType to, std::uint64_t numel);

}  // namespace fsdp::formats
