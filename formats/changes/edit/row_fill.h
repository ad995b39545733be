// SPDX-License-Identifier: Apache-2.0
// Makes new rows of a table: the mean of the old ones, or noise, bit for bit the same on every
// machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arithmetic/input_reader.h"

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
std::vector<std::byte> mean_row(const InputReader& table, std::uint64_t numel,
                                std::uint64_t columns);

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
// Writes the elements from `first` on.  Requires: is_floating(dtype).
void fill_noise(const Noise& noise, std::uint64_t first, DType dtype, std::span<std::byte> out);

}  // namespace fsdp::formats
