// SPDX-License-Identifier: Apache-2.0
// Finds the low-rank product nearest to a matrix that is too large for memory: a truncated singular
// value decomposition by random projection (Halko, Martinsson and Tropp, 2011), bit for bit the
// same on every machine.
#pragma once

#include <cstddef>
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
  // Fills `out` with the rows from `first` on.  Throws: the errors of reading.
  virtual void read(std::size_t first, std::span<double> out) = 0;
};

struct FactorOptions {
  std::size_t rank = 1;
  // How often M^T M is applied before the projection: each time, large singular values stand out
  // more.
  int passes = 4;
  unsigned threads = 1;
};

struct LowRankFactors {
  // `rank` vectors each, orthogonal among themselves; left_k and right_k have the same norm.
  // Vectors beyond the rank of the matrix are zero.
  Vectors left;   // each has an element for each row of the matrix
  Vectors right;  // each has an element for each column of the matrix
  double energy;  // sum of the squares of the matrix's elements
  double kept;    // sum of the squares of the product's elements
};

// Note [random projection]
// M^T M is applied `passes` times to rank + rank / 2 + 8 vectors of random numbers, or to as many
// as the smaller side of the matrix M has elements; after each time the results are made
// orthonormal.  Then M is applied to the last ones, the images are diagonalized, and the `rank`
// largest are kept.  The random numbers are SplitMix64's from state 0: the upper 54 bits, with a
// sign, times 2^-53.

// Returns factors whose sum of left_k * right_k^T is near M; nothing if every element of M is zero.
// Reads M passes + 1 times, or fewer if its rank is small.  Memory: the vectors of the note three
// times, and two blocks of rows.
// Requires: rank is at most the smaller side, M is finite.
// Throws: kUnsupported for elements whose squares overflow or vanish, the errors of M,
// kInterrupted.
std::optional<LowRankFactors> low_rank_factors(MatrixRows& matrix, const FactorOptions& options);

// Returns the sum of the squares of M - left^T right.
double residual_energy(MatrixRows& matrix, const Vectors& left, const Vectors& right,
                       unsigned threads);

}  // namespace fsdp::formats
