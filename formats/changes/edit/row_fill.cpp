// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/row_fill.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Sums of this many columns take 128 MiB; a row of a table is far shorter.
constexpr std::uint64_t kMostColumns = std::uint64_t{16} << 20U;
constexpr std::uint64_t kMeanBlockNumel = 64U << 10U;

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

}  // namespace

std::vector<std::byte> mean_row(const InputReader& table, std::uint64_t numel,
                                std::uint64_t columns) {
  if (columns > kMostColumns) {
    throw Error(ErrorCode::kLimitSize,
                cat("a row has ", columns, " elements, at most ", kMostColumns, " are averaged"));
  }
  const std::size_t item = item_bytes(table.dtype());
  const std::uint64_t block = std::min(numel, kMeanBlockNumel);
  std::vector<std::byte> elements(block * item);
  std::vector<std::byte> scratch(block * item);
  std::vector<double> wide(block);
  std::vector<double> sums(columns);
  std::uint64_t column = 0;
  for (std::uint64_t first = 0; first < numel; first += block) {
    throw_if_interrupted();
    const std::uint64_t count = std::min(block, numel - first);
    const auto read = std::span(elements).first(count * item);
    table.read(first, read, scratch);
    cast(table.dtype(), read, DType::kFloat64,
         std::as_writable_bytes(std::span(wide).first(count)));
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
  std::vector<std::byte> row(columns * item);
  cast(DType::kFloat64, std::as_bytes(std::span(sums)), table.dtype(), row);
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

void fill_noise(const Noise& noise, std::uint64_t first, DType dtype, std::span<std::byte> out) {
  std::array<double, 512> numbers{};
  const std::size_t item = item_bytes(dtype);
  while (!out.empty()) {
    const std::size_t count = std::min(numbers.size(), out.size() / item);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = noise_at(noise, first + i);
    cast(DType::kFloat64, std::as_bytes(std::span(numbers).first(count)), dtype,
         out.first(count * item));
    first += count;
    out = out.subspan(count * item);
  }
}

}  // namespace fsdp::formats
