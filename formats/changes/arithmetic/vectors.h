// SPDX-License-Identifier: Apache-2.0
// Vectors of float64 and the algebra of low-rank factors, bit for bit the same on every machine.
#pragma once

#include <cstddef>
#include <vector>

namespace fsdp::formats {

// Vectors of one length, one after the other.
struct Vectors {
  Vectors(std::size_t number, std::size_t size)
      : count(number), length(size), elements(number * size) {}
  double* at(std::size_t k) { return elements.data() + k * length; }
  const double* at(std::size_t k) const { return elements.data() + k * length; }

  std::size_t count;
  std::size_t length;
  std::vector<double> elements;
};

// Note [order of a product]
// Every step rounds to nearest, ties to even; none is fused with another.  In `dot`, the product of
// elements i is added to sum i mod 16, in ascending order; then sum l + 8 is added to sum l, and so
// on with 4, 2 and 1.  In `add_product`, products are added to each element in ascending order.  So
// results do not depend on threads, blocks or the width of a processor's vectors.

double dot(const double* a, const double* b, std::size_t count);

// A row-major matrix inside another one: `stride` elements from one row to the next.
template <typename Real>
struct Rows {
  Real* begin;
  std::size_t stride;
};
// c[k][w] += the sum over u of a[k][u] * b[u][w], for k < rows, u < inner and w < columns.
void add_product(Rows<double> c, Rows<const double> a, Rows<const double> b, std::size_t rows,
                 std::size_t inner, std::size_t columns);

// Makes each vector orthogonal to those before it, and of length 1 (Gram and Schmidt, modified,
// twice).  A vector that depends on those before it becomes zero.
void orthonormalize(Vectors& vectors);

// Rotates pairs of vectors of `left`, and the same pairs of `right`, until those of `left` are
// orthogonal (one-sided Jacobi).  Then sorts both by the length in `left`, longest first.  The sum
// of left_k * right_k^T stays the same, up to rounding.  Requires: as many vectors in both.
void diagonalize(Vectors& left, Vectors& right);

}  // namespace fsdp::formats
