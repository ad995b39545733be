// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/row_fill.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/elementwise.h"

namespace fsdp::formats {
namespace {

// Sums of this many columns take 128 MiB; a row of a table is far shorter.
constexpr std::uint64_t kMostColumns = std::uint64_t{16} << 20U;

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

// Noise from element `first` of a table on.
class NoiseSource : public arrays::ComputedSource {
 public:
  NoiseSource(DType dtype, std::uint64_t numel, std::uint64_t first, const Noise& noise)
      : ComputedSource(dtype, numel), first_(first), noise_(noise) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const arrays::Scratch scratch;
    const std::span numbers(reinterpret_cast<double*>(scratch.bytes().data()),
                            out.size() / item_bytes(dtype()));
    for (double& number : numbers) number = noise_at(noise_, first_ + first++);
    cast(DType::kFloat64, std::as_bytes(numbers), dtype(), out);
  }

 private:
  std::uint64_t first_;
  Noise noise_;
};

}  // namespace

std::vector<std::byte> mean_row(const arrays::Array& table, std::uint64_t columns) {
  if (columns > kMostColumns) {
    throw Error(ErrorCode::kLimitSize,
                cat("a row has ", columns, " elements, at most ", kMostColumns, " are averaged"));
  }
  const std::uint64_t numel = numel_of(table);
  const arrays::ArrayReader reader(table);
  std::vector<double> wide(std::min<std::uint64_t>(numel, arrays::kComputedNumel));
  std::vector<double> sums(columns);
  std::uint64_t column = 0;
  for (std::uint64_t first = 0; first < numel; first += wide.size()) {
    throw_if_interrupted();
    const std::uint64_t count = std::min<std::uint64_t>(wide.size(), numel - first);
    reader.read_as(DType::kFloat64, first, std::as_writable_bytes(std::span(wide).first(count)));
    for (std::uint64_t i = 0; i < count;) {
      const std::uint64_t run = std::min(count - i, columns - column);
      for (std::uint64_t k = 0; k < run; ++k) sums[column + k] += wide[i + k];
      i += run;
      column = (column + run) % columns;
    }
  }
  const std::uint64_t row_count = numel / columns;
  const auto rows = static_cast<double>(row_count);
  for (std::uint64_t c = 0; c < columns; ++c) {
    sums[c] /= rows;
    if (std::isfinite(sums[c])) continue;
    throw Error(ErrorCode::kUnsupported,
                cat("the mean of column ", c, " is ", std::isnan(sums[c]) ? "nan" : "infinite"));
  }
  std::vector<std::byte> row(columns * item_bytes(table.dtype));
  cast(DType::kFloat64, std::as_bytes(std::span(sums)), table.dtype, row);
  return row;
}

double noise_at(const Noise& noise, std::uint64_t element) {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15U;
  constexpr std::uint64_t kWords = 6;
  const std::uint64_t key = mixed(noise.seed + kStep);
  std::uint64_t sum = 0;
  for (std::uint64_t j = 1; j <= kWords; ++j) {
    const std::uint64_t word = mixed(key + (kWords * element + j) * kStep);
    sum += (word >> 32U) + (word & 0xFFFFFFFFU);
  }
  const auto centred =
      static_cast<std::int64_t>(sum) - static_cast<std::int64_t>(kWords * 0xFFFFFFFFU);
  return static_cast<double>(centred) * 0x1p-32 * noise.deviation;
}

arrays::Array resized_table(const arrays::Array& table, std::size_t dim, std::int64_t size,
                            const NewRows& fill) {
  const std::int64_t kept = std::min(size, table.shape[dim]);
  arrays::Array old = arrays::sliced(table, dim, 0, kept);
  if (kept == size) return old;
  std::vector<std::int64_t> shape = table.shape;
  shape[dim] = size - kept;
  arrays::Array fresh;
  if (fill.noise) {
    fresh =
        arrays::computed_array(table.dtype, shape,
                               [dtype = table.dtype, numel = volume({shape, shape}),
                                first = numel_of(old), noise = *fill.noise] {
                                 return std::make_shared<NoiseSource>(dtype, numel, first, noise);
                               });
  } else {
    fresh = fill.row.empty() ? arrays::constant_array(table.dtype, shape, 0)
                             : arrays::repeated_array(table.dtype, shape, fill.row);
  }
  return arrays::concatenated(std::array{old, fresh}, dim);
}

}  // namespace fsdp::formats
