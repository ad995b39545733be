// SPDX-License-Identifier: Apache-2.0
// Stages between a tensor that is read and one that is computed from it: each reads the elements of
// the stage before it.
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

// The elements of `source`, of type `dtype`.
std::unique_ptr<ElementReader> elements_of(std::shared_ptr<const ByteSource> source, DType dtype);

// The elements of `reader` from `first` on.
std::unique_ptr<ElementReader> elements_from(std::shared_ptr<const ElementReader> reader,
                                             std::uint64_t first);

// The elements of `reader`, `numel` in all, cast to `to`.
std::shared_ptr<const ByteSource> cast_source(std::shared_ptr<const ElementReader> reader, DType to,
                                              std::uint64_t numel);

// Sources of equal size behind each other.  Requires: at least one.
std::shared_ptr<const ByteSource> joined_source(
    std::vector<std::shared_ptr<const ByteSource>> parts);

// A matrix [numel / columns, columns] whose rows get the lengths `magnitudes`: each element becomes
// (magnitude / length of its row) * element, in float64 for float64 and in float32 for any other
// type.  Lengths are summed up in float64, in order.  `by_column`: the same for columns.
// Reads the matrix once at once, and again when it is read.
// Requires: a magnitude for each row or column; numel is not 0.
std::shared_ptr<const ByteSource> scaled_source(std::shared_ptr<const ElementReader> matrix,
                                                std::span<const double> magnitudes, bool by_column,
                                                std::uint64_t columns, std::uint64_t numel);

// A matrix [numel / columns, columns] with other rows: `rows` in the type `to`, one after the
// other, in the places `places`; the last one of a place counts.  Others are cast.
// Requires: places are those of rows.
std::shared_ptr<const ByteSource> with_rows(std::shared_ptr<const ElementReader> matrix,
                                            std::span<const std::uint64_t> places,
                                            std::vector<std::byte> rows, std::uint64_t columns,
                                            DType to, std::uint64_t numel);

}  // namespace fsdp::formats
