// SPDX-License-Identifier: Apache-2.0
// The low-rank product nearest to a matrix that is too large to be held: a truncated singular value
// decomposition by random projection (Halko, Martinsson and Tropp, 2011), the same in every bit on
// every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "formats/changes/arithmetic/vectors.h"

namespace fsdp::formats {

// A matrix that is read by its rows.
class MatrixRows {
 public:
  MatrixRows() = default;
  MatrixRows(const MatrixRows&) = delete;
  MatrixRows& operator=(const MatrixRows&) = delete;
  virtual ~MatrixRows() = default;
  virtual std::size_t rows() const = 0;
  virtual std::size_t columns() const = 0;
  // Reads the rows from `first` on that `out` has room for.  Throws: what reading throws.
  virtual void read(std::size_t first, std::span<double> out) = 0;
};

struct FactorOptions {
  std::size_t rank = 1;
  // How often the matrix is multiplied with itself before it is projected: each time its larger
  // singular values stand out more.
  int passes = 4;
  unsigned threads = 1;
};

struct LowRankFactors {
  // `rank` vectors each, orthogonal and of equal length within a pair; those beyond the rank of the
  // matrix are zero.
  Vectors left;   // as long as a column
  Vectors right;  // as long as a row
  double energy;  // the sum of the squares of the matrix's elements
  double kept;    // that of the product of the factors
};

// Note [random projection]
// The matrix M is multiplied with vectors of random numbers, rank + rank / 2 + 8 of them or as many
// as its smaller side has; the results are made orthonormal and multiplied with M^T M again,
// `passes` times in all.  What M makes of the last ones is diagonalized, and the `rank` largest are
// kept. The numbers are SplitMix64's from state 0: the upper 54 bits, with a sign, times 2^-53.

// Returns factors with M near the sum of left_k * right_k^T; nothing if every element of M is zero.
// Reads M passes + 1 times, or less where its rank is small.  Memory: the vectors of the note
// three times, and two blocks of rows.
// Requires: rank is at most the smaller side, M is finite.
// Throws: kUnsupported for elements whose squares overflow or vanish, what M throws, kInterrupted.
std::optional<LowRankFactors> low_rank_factors(MatrixRows& matrix, const FactorOptions& options);

// Returns the sum of the squares of M - left^T right.
double residual_energy(MatrixRows& matrix, const Vectors& left, const Vectors& right,
                       unsigned threads);

}  // namespace fsdp::formats
