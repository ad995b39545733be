// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/changes/arithmetic/low_rank.h"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/spares.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arithmetic/real.h"

namespace fsdp::formats {
namespace {

// Elements that are read at a time.
constexpr std::uint64_t kBlockNumel = 64U << 10U;
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
class LowRankSource : public ByteSource {
 public:
  LowRankSource(std::unique_ptr<ElementReader> weight, std::span<const LowRankUpdate> updates,
                std::uint64_t columns, DType to, std::uint64_t numel)
      : weight_(std::move(weight)),
        columns_(columns),
        to_(to),
        numel_(numel),
        item_(item_bytes(to)) {
    for (const LowRankUpdate& update : updates) {
      updates_.push_back({matrix_of<Real>(update.left, numel / columns),
                          strips_of(matrix_of<Real>(update.right, update.rank), update.rank),
                          update.rank, static_cast<Real>(update.scale)});
    }
  }

  std::uint64_t size() const override { return numel_ * item_; }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset % item_ != 0 || out.size() % item_ != 0 || offset > size() ||
        out.size() > size() - offset) {
      throw Error(ErrorCode::kTruncated, cat("bytes ", offset, "+", out.size(), " of ", size(),
                                             " are not whole elements of a weight"));
    }
    const auto buffers = buffers_.take();
    for (std::uint64_t first = offset / item_; !out.empty();) {
      const std::uint64_t count = std::min(kBlockNumel, out.size() / item_);
      const std::uint64_t bytes = count * item_bytes(weight_->dtype());
      if (buffers->weight.size() < count) {
        buffers->elements.resize(bytes);
        buffers->scratch.resize(bytes);
        buffers->weight.resize(count);
      }
      const auto elements = std::span(buffers->elements).first(bytes);
      const auto weight = std::span(buffers->weight).first(count);
      weight_->read(first, elements, buffers->scratch);
      cast(weight_->dtype(), elements, kTypeOf<Real>, std::as_writable_bytes(weight));
      for (const Update& each : updates_) update(each, first, weight);
      settle_nan(weight);
      cast(kTypeOf<Real>, std::as_bytes(weight), to_, out.first(count * item_));
      out = out.subspan(count * item_);
      first += count;
    }
  }

 private:
  struct Update {
    std::vector<Real> left;
    std::vector<Real> right;  // in strips
    std::uint64_t rank;
    Real scale;
  };
  // Of one read.
  struct Buffers {
    std::vector<std::byte> elements;
    std::vector<std::byte> scratch;
    std::vector<Real> weight;
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

  std::unique_ptr<ElementReader> weight_;
  std::vector<Update> updates_;
  std::uint64_t columns_;
  DType to_;
  std::uint64_t numel_;
  std::uint64_t item_;
  mutable Spares<Buffers> buffers_;
};

}  // namespace

std::shared_ptr<const ByteSource> low_rank_source(std::unique_ptr<ElementReader> weight,
                                                  std::span<const LowRankUpdate> updates,
                                                  std::uint64_t columns, DType to,
                                                  std::uint64_t numel) {
  if (weight->dtype() == DType::kFloat64) {
    return std::make_shared<LowRankSource<double>>(std::move(weight), updates, columns, to, numel);
  }
  return std::make_shared<LowRankSource<float>>(std::move(weight), updates, columns, to, numel);
}

}  // namespace fsdp::formats
