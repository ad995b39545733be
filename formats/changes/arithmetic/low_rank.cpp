// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/changes/arithmetic/low_rank.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arithmetic/real.h"

namespace fsdp::formats {
namespace {

// Columns computed at a time: their sums stay in registers from the first rank to the last.
template <typename Real>
constexpr std::size_t kStrip = 256 / sizeof(Real);

// Adds `scale` times a part of a row of left * right to the row of a weight.
// `left`: the row, of `rank` elements.  `right`: `rank` rows of one strip of columns.  `skipped`:
// columns of the strip before the part.
// Loops of a fixed length become vector instructions.
template <typename Real>
FSDP_INTO_CALLER void add_row(const Real* left, const Real* right, std::size_t rank, Real scale,
                              std::size_t skipped, std::span<Real> weight) {
  std::array<Real, kStrip<Real>> d;
  for (std::size_t i = 0; i < kStrip<Real>; ++i) d[i] = left[0] * right[i];
  for (std::size_t k = 1; k < rank; ++k) {
    right += kStrip<Real>;
    const Real factor = left[k];
    for (std::size_t i = 0; i < kStrip<Real>; ++i) d[i] = d[i] + factor * right[i];
  }
  Real* const sums = weight.data();
  if (weight.size() == kStrip<Real>) {
    for (std::size_t i = 0; i < kStrip<Real>; ++i) sums[i] = sums[i] + scale * d[i];
  } else {
    for (std::size_t i = 0; i < weight.size(); ++i) sums[i] = sums[i] + scale * d[skipped + i];
  }
}

FSDP_WIDE_VECTORS void add(const float* left, const float* right, std::size_t rank, float scale,
                           std::size_t skipped, std::span<float> weight) {
  add_row(left, right, rank, scale, skipped, weight);
}
FSDP_WIDE_VECTORS void add(const double* left, const double* right, std::size_t rank, double scale,
                           std::size_t skipped, std::span<double> weight) {
  add_row(left, right, rank, scale, skipped, weight);
}

FSDP_WIDE_VECTORS void settle_nan(std::span<float> numbers) {
  for (float& number : numbers) number = settled(number);
}
FSDP_WIDE_VECTORS void settle_nan(std::span<double> numbers) {
  for (double& number : numbers) number = settled(number);
}

// Returns the matrix, transposed back if it is stored transposed, with `rows` rows.
template <typename Real>
std::vector<Real> matrix_of(const ThinMatrix& matrix, std::uint64_t rows) {
  std::vector<Real> stored(matrix.elements.size() / item_bytes(matrix.dtype));
  cast(matrix.dtype, matrix.elements, kTypeOf<Real>, std::as_writable_bytes(std::span(stored)));
  if (!matrix.transposed) return stored;
  const std::uint64_t columns = stored.size() / rows;
  std::vector<Real> turned(stored.size());
  for (std::uint64_t c = 0; c < columns; ++c) {
    for (std::uint64_t r = 0; r < rows; ++r) turned[r * columns + c] = stored[c * rows + r];
  }
  return turned;
}

// Returns the matrix strip by strip, so that elements that are used together lie together.  Zeros
// fill up the last strip.
template <typename Real>
std::vector<Real> strips_of(const std::vector<Real>& matrix, std::uint64_t rows) {
  const std::uint64_t columns = matrix.size() / rows;
  const std::uint64_t strips = (columns + kStrip<Real> - 1) / kStrip<Real>;
  std::vector<Real> result(strips * rows * kStrip<Real>);
  for (std::uint64_t s = 0; s < strips; ++s) {
    const std::uint64_t begin = s * kStrip<Real>;
    const std::uint64_t count = std::min<std::uint64_t>(kStrip<Real>, columns - begin);
    for (std::uint64_t r = 0; r < rows; ++r) {
      std::copy_n(matrix.data() + r * columns + begin, count,
                  result.data() + (s * rows + r) * kStrip<Real>);
    }
  }
  return result;
}

template <typename Real>
class Kernel : public LowRankKernel {
 public:
  Kernel(DType weight, std::span<const LowRankUpdate> updates, std::uint64_t numel)
      : dtype_(weight) {
    for (const LowRankUpdate& update : updates) {
      const std::uint64_t rows =
          update.left.elements.size() / item_bytes(update.left.dtype) / update.rank;
      columns_ = numel / rows;
      updates_.push_back({matrix_of<Real>(update.left, rows),
                          strips_of(matrix_of<Real>(update.right, update.rank), update.rank),
                          update.rank, static_cast<Real>(update.scale)});
    }
  }

  void apply(std::uint64_t first, std::span<const std::byte> weight, std::span<std::byte> scratch,
             DType to, std::span<std::byte> out) const override {
    const std::span numbers(reinterpret_cast<Real*>(scratch.data()),
                            weight.size() / item_bytes(dtype_));
    cast(dtype_, weight, kTypeOf<Real>, std::as_writable_bytes(numbers));
    for (const Update& each : updates_) update(each, first, numbers);
    settle_nan(numbers);
    cast(kTypeOf<Real>, std::as_bytes(numbers), to, out);
  }

 private:
  struct Update {
    std::vector<Real> left;
    std::vector<Real> right;  // in strips
    std::uint64_t rank;
    Real scale;
  };

  // `weight`: elements from `first` on.
  void update(const Update& by, std::uint64_t first, std::span<Real> weight) const {
    const std::uint64_t end = first + weight.size();
    for (std::uint64_t column = 0; column < columns_; column += kStrip<Real>) {
      const Real* const right = by.right.data() + column * by.rank;
      const std::uint64_t columns = std::min<std::uint64_t>(kStrip<Real>, columns_ - column);
      for (std::uint64_t row = first / columns_; row * columns_ < end; ++row) {
        const std::uint64_t at = row * columns_ + column;
        const std::uint64_t from = std::max(at, first);
        const std::uint64_t to = std::min(at + columns, end);
        if (from >= to) continue;
        add(by.left.data() + row * by.rank, right, by.rank, by.scale, from - at,
            weight.subspan(from - first, to - from));
      }
    }
  }

  DType dtype_;
  std::vector<Update> updates_;
  std::uint64_t columns_ = 1;
};

}  // namespace

std::unique_ptr<LowRankKernel> low_rank_kernel(DType weight, std::span<const LowRankUpdate> updates,
                                               std::uint64_t numel) {
  if (weight == DType::kFloat64) return std::make_unique<Kernel<double>>(weight, updates, numel);
  return std::make_unique<Kernel<float>>(weight, updates, numel);
}

}  // namespace fsdp::formats
