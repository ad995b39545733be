// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/arithmetic/low_rank.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "formats/base/cast.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/base/vector_clones.h"

namespace fsdp::formats {
namespace {

// Elements that are read at a time.
constexpr std::uint64_t kBlockNumel = 64U << 10U;
// Columns computed at a time: they stay in a core's first-level cache from the first rank to the
// last.
constexpr std::uint64_t kTile = 1024;
// Loops of this fixed length become vector instructions.
constexpr std::size_t kLanes = 16;

template <typename Each>
inline __attribute__((always_inline)) void each_lane(std::size_t count, const Each& each) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) each(i + l);
  }
  for (; i < count; ++i) each(i);
}

FSDP_WIDE_VECTORS void multiply_row(float left, const float* right, float* d, std::size_t count) {
  each_lane(count, [=](std::size_t i) { d[i] = left * right[i]; });
}
FSDP_WIDE_VECTORS void multiply_row(double left, const double* right, double* d,
                                    std::size_t count) {
  each_lane(count, [=](std::size_t i) { d[i] = left * right[i]; });
}
FSDP_WIDE_VECTORS void add_row(float left, const float* right, float* d, std::size_t count) {
  each_lane(count, [=](std::size_t i) { d[i] = d[i] + left * right[i]; });
}
FSDP_WIDE_VECTORS void add_row(double left, const double* right, double* d, std::size_t count) {
  each_lane(count, [=](std::size_t i) { d[i] = d[i] + left * right[i]; });
}

template <typename Real>
constexpr DType kTypeOf = sizeof(Real) == sizeof(float) ? DType::kFloat32 : DType::kFloat64;

// The matrix as it is meant, `rows` of equal length.
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
                          matrix_of<Real>(update.right, update.rank), update.rank,
                          static_cast<Real>(update.scale)});
    }
  }

  std::uint64_t size() const override { return numel_ * item_; }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset % item_ != 0 || out.size() % item_ != 0 || offset > size() ||
        out.size() > size() - offset) {
      throw Error(ErrorCode::kTruncated, cat("bytes ", offset, "+", out.size(), " of ", size(),
                                             " are no whole elements of a weight"));
    }
    std::vector<std::byte> elements;
    std::vector<std::byte> scratch;
    std::vector<Real> weight;
    for (std::uint64_t first = offset / item_; !out.empty();) {
      const std::uint64_t count = std::min(kBlockNumel, out.size() / item_);
      elements.resize(count * item_bytes(weight_->dtype()));
      scratch.resize(elements.size());
      weight.resize(count);
      weight_->read(first, elements, scratch);
      cast(weight_->dtype(), elements, kTypeOf<Real>, std::as_writable_bytes(std::span(weight)));
      update(first, weight);
      cast(kTypeOf<Real>, std::as_bytes(std::span(weight)), to_, out.first(count * item_));
      out = out.subspan(count * item_);
      first += count;
    }
  }

 private:
  struct Update {
    std::vector<Real> left;
    std::vector<Real> right;
    std::uint64_t rank;
    Real scale;
  };

  // `weight`: elements from `first` on.
  void update(std::uint64_t first, std::span<Real> weight) const {
    std::vector<Real> d(kTile);
    while (!weight.empty()) {
      const std::uint64_t row = first / columns_;
      const std::uint64_t column = first % columns_;
      const std::uint64_t count =
          std::min({kTile, columns_ - column, static_cast<std::uint64_t>(weight.size())});
      for (const Update& update : updates_) {
        const Real* const left = update.left.data() + row * update.rank;
        const Real* const right = update.right.data() + column;
        multiply_row(left[0], right, d.data(), count);
        for (std::uint64_t k = 1; k < update.rank; ++k)
          add_row(left[k], right + k * columns_, d.data(), count);
        add_row(update.scale, d.data(), weight.data(), count);
      }
      for (Real& number : weight.first(count)) {
        // The sign and payload of a NaN depend on the processor.
        if (number != number) number = std::numeric_limits<Real>::quiet_NaN();
      }
      weight = weight.subspan(count);
      first += count;
    }
  }

  std::unique_ptr<ElementReader> weight_;
  std::vector<Update> updates_;
  std::uint64_t columns_;
  DType to_;
  std::uint64_t numel_;
  std::uint64_t item_;
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
