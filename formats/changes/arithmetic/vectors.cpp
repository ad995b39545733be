// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/changes/arithmetic/vectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/vector_clones.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kSums = 16;
// A tile of b stays in a core's first-level cache while all rows of a meet it.
constexpr std::size_t kTileInner = 64;
constexpr std::size_t kTileColumns = 64;
// A vector depends on those before it if at most this part of its length is left without them.
constexpr double kDependent = 1e-13;
// Vectors count as orthogonal if the cosine of their angle is at most this, which is more than the
// rounding of dot products of long vectors.
constexpr double kOrthogonal = 1e-13;
// About ten sweeps are enough; the method converges for every input.
constexpr int kMaxSweeps = 60;

FSDP_WIDE_VECTORS double sum_of_products(const double* a, const double* b, std::size_t count) {
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::size_t l = 0; l < kSums; ++l) sums[l] = sums[l] + a[i + l] * b[i + l];
  }
  for (std::size_t l = 0; i + l < count; ++l) sums[l] = sums[l] + a[i + l] * b[i + l];
  for (std::size_t half = kSums / 2; half != 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) sums[l] = sums[l] + sums[l + half];
  }
  return sums[0];
}

// One tile: at most kTileInner by kTileColumns of b.
FSDP_WIDE_VECTORS void add_tile(Rows<double> c, Rows<const double> a, Rows<const double> b,
                                std::size_t rows, std::size_t inner, std::size_t columns) {
  for (std::size_t k = 0; k < rows; ++k) {
    double* __restrict const to = c.begin + k * c.stride;
    const double* const factors = a.begin + k * a.stride;
    std::size_t u = 0;
    for (; u + 4 <= inner; u += 4) {
      const double* __restrict const from = b.begin + u * b.stride;
      const double f0 = factors[u];
      const double f1 = factors[u + 1];
      const double f2 = factors[u + 2];
      const double f3 = factors[u + 3];
      for (std::size_t w = 0; w < columns; ++w) {
        to[w] = (((to[w] + f0 * from[w]) + f1 * from[b.stride + w]) + f2 * from[2 * b.stride + w]) +
                f3 * from[3 * b.stride + w];
      }
    }
    for (; u < inner; ++u) {
      const double* __restrict const from = b.begin + u * b.stride;
      for (std::size_t w = 0; w < columns; ++w) to[w] = to[w] + factors[u] * from[w];
    }
  }
}

FSDP_WIDE_VECTORS void subtract(double* to, double factor, const double* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = to[i] - factor * from[i];
}

FSDP_WIDE_VECTORS void divide(double* to, double divisor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = to[i] / divisor;
}

FSDP_WIDE_VECTORS void turn(double* p, double* q, double cosine, double sine, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double first = cosine * p[i] - sine * q[i];
    q[i] = sine * p[i] + cosine * q[i];
    p[i] = first;
  }
}

// Rotates two vectors until they are orthogonal.  Returns false if they already were.
bool turn_pair(Vectors& left, Vectors& right, std::size_t p, std::size_t q) {
  const double across = dot(left.at(p), left.at(q), left.length);
  const double first = dot(left.at(p), left.at(p), left.length);
  const double second = dot(left.at(q), left.at(q), left.length);
  if (std::abs(across) <= kOrthogonal * std::sqrt(first) * std::sqrt(second)) return false;
  const double zeta = (second - first) / (2 * across);
  const double tangent = (zeta < 0 ? -1.0 : 1.0) / (std::abs(zeta) + std::sqrt(1.0 + zeta * zeta));
  const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent);
  const double sine = cosine * tangent;
  turn(left.at(p), left.at(q), cosine, sine, left.length);
  turn(right.at(p), right.at(q), cosine, sine, right.length);
  return true;
}

void reorder(Vectors& vectors, const std::vector<std::size_t>& order) {
  Vectors sorted(vectors.count, vectors.length);
  for (std::size_t k = 0; k < order.size(); ++k)
    std::copy_n(vectors.at(order[k]), vectors.length, sorted.at(k));
  vectors = std::move(sorted);
}

}  // namespace

double dot(const double* a, const double* b, std::size_t count) {
  return sum_of_products(a, b, count);
}

void add_product(Rows<double> c, Rows<const double> a, Rows<const double> b, std::size_t rows,
                 std::size_t inner, std::size_t columns) {
  for (std::size_t w = 0; w < columns; w += kTileColumns) {
    for (std::size_t u = 0; u < inner; u += kTileInner) {
      add_tile({c.begin + w, c.stride}, {a.begin + u, a.stride},
               {b.begin + u * b.stride + w, b.stride}, rows, std::min(kTileInner, inner - u),
               std::min(kTileColumns, columns - w));
    }
  }
}

void orthonormalize(Vectors& vectors) {
  for (std::size_t k = 0; k < vectors.count; ++k) {
    throw_if_interrupted();
    double* const own = vectors.at(k);
    const double before = std::sqrt(dot(own, own, vectors.length));
    for (int time = 0; time < 2; ++time) {
      for (std::size_t i = 0; i < k; ++i)
        subtract(own, dot(vectors.at(i), own, vectors.length), vectors.at(i), vectors.length);
      const double after = std::sqrt(dot(own, own, vectors.length));
      if (after <= kDependent * before) {
        std::fill_n(own, vectors.length, 0.0);
        break;
      }
      divide(own, after, vectors.length);
    }
  }
}

void diagonalize(Vectors& left, Vectors& right) {
  bool turned = true;
  for (int sweep = 0; turned && sweep < kMaxSweeps; ++sweep) {
    turned = false;
    for (std::size_t p = 0; p < left.count; ++p) {
      throw_if_interrupted();
      for (std::size_t q = p + 1; q < left.count; ++q)
        turned = turn_pair(left, right, p, q) || turned;
    }
  }
  std::vector<double> squares(left.count);
  for (std::size_t k = 0; k < left.count; ++k)
    squares[k] = dot(left.at(k), left.at(k), left.length);
  std::vector<std::size_t> order(left.count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return squares[a] > squares[b]; });
  reorder(left, order);
  reorder(right, order);
}

}  // namespace fsdp::formats
