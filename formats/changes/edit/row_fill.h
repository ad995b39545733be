// SPDX-License-Identifier: Apache-2.0
// Tables with another number of rows: new rows are the mean of the old ones, zeros, or noise, bit
// for bit the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "formats/changes/arrays/array.h"

namespace fsdp::formats {

// Note [order of a mean]
// For each column by itself: each element is converted to float64, exactly; sum = 0; the rows are
// added from the first to the last, every sum rounded to float64; the sum is divided by the number
// of rows, rounded, and cast to the table's dtype as `cast` does.
//
// Returns the row of means.  `columns`: elements of a row.
// Requires: the table is of a floating type and has a row.
// Throws: kUnsupported if a mean is not finite, naming the column; kLimitSize for rows of more than
// 16 Mi elements; the errors of reading; kInterrupted.
std::vector<std::byte> mean_row(const arrays::Array& table, std::uint64_t columns);

// Note [noise of an element]
// Six words of SplitMix64 for the element e of the table, counted in row-major order:
//   word(j) = mix(mix(seed + G) + (6 e + j + 1) G),  j = 0..5, modulo 2^64,
//   G = 0x9E3779B97F4A7C15,
//   mix(z): z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB;
//   z ^= z >> 31.
// S is the sum of their twelve halves of 32 bits.  (S - 6 (2^32 - 1)) / 2^32 has the mean 0, very
// nearly the variance 1, and nearly a normal distribution that ends at -6 and 6.  It is exact in
// float64, is multiplied by the deviation, rounded, and cast as `cast` does.  No function of a
// mathematical library takes part, so seeds mean the same everywhere.
struct Noise {
  std::uint64_t seed = 0;
  double deviation = 0.02;
};
// Returns the number of element `element` before it is cast.
double noise_at(const Noise& noise, std::uint64_t element);

// New rows: noise if it is set, else copies of `row`, or zeros if that is empty.
struct NewRows {
  std::vector<std::byte> row;
  std::optional<Noise> noise;
};
// Returns the table with `size` elements in dimension `dim`: the first ones of the table, then new
// rows if it has fewer.  Requires: dimensions before `dim` have one element; rows have elements.
arrays::Array resized_table(const arrays::Array& table, std::size_t dim, std::int64_t size,
                            const NewRows& fill);

}  // namespace fsdp::formats
