// SPDX-License-Identifier: Apache-2.0
// Loops keep kStatLanes results side by side, so that compilers turn them into vector instructions
// without changing the order of additions; CMakeLists.txt keeps them from fusing multiplications
// and additions, which would make results depend on the processor.
#include "formats/state/model/tensor_stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "formats/bytes/base/cast.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kStatLanes = 16;

template <typename T>
using Group = std::array<T, kStatsGroup>;

// Adds the groups' sums with Neumaier's compensation.
void add_sum(TensorStats& stats, double number) {
  const double sum = stats.sum + number;
  stats.sum_rest += std::abs(stats.sum) >= std::abs(number) ? (stats.sum - sum) + number
                                                            : (number - sum) + stats.sum;
  stats.sum = sum;
}

double total(const TensorStats& stats) {
  const double both = stats.sum + stats.sum_rest;
  return std::isfinite(both) ? both : stats.sum;
}

template <typename T>
double lanes_total(const std::array<T, kStatLanes>& lanes) {
  double result = 0;
  for (const T lane : lanes) result += static_cast<double>(lane);
  return result;
}

template <typename T>
double sum_of(const T* x, std::size_t count) {
  std::array<double, kStatLanes> sum{};
  std::size_t i = 0;
  for (; i + kStatLanes <= count; i += kStatLanes) {
    for (std::size_t l = 0; l < kStatLanes; ++l) sum[l] += static_cast<double>(x[i + l]);
  }
  for (std::size_t l = 0; i + l < count; ++l) sum[l] += static_cast<double>(x[i + l]);
  return lanes_total(sum);
}

template <typename T>
double square_sum_of(const T* x, std::size_t count, double mean) {
  std::array<double, kStatLanes> sum{};
  const auto add = [&](std::size_t l, T number) {
    const double distance = static_cast<double>(number) - mean;
    sum[l] += distance * distance;
  };
  std::size_t i = 0;
  for (; i + kStatLanes <= count; i += kStatLanes) {
    for (std::size_t l = 0; l < kStatLanes; ++l) add(l, x[i + l]);
  }
  for (std::size_t l = 0; i + l < count; ++l) add(l, x[i + l]);
  return lanes_total(sum);
}

// Finds extremes and counts zeros.  Requires: no NaN, count > 0.
template <typename T>
void order_of(const T* x, std::size_t count, TensorStats& stats) {
  std::array<T, kStatLanes> low;
  std::array<T, kStatLanes> high;
  std::array<std::uint32_t, kStatLanes> zeros{};
  low.fill(x[0]);
  high.fill(x[0]);
  const auto look = [&](std::size_t l, T number) {
    low[l] = number < low[l] ? number : low[l];
    high[l] = number > high[l] ? number : high[l];
    zeros[l] += number == T{0} ? 1U : 0U;
  };
  std::size_t i = 0;
  for (; i + kStatLanes <= count; i += kStatLanes) {
    for (std::size_t l = 0; l < kStatLanes; ++l) look(l, x[i + l]);
  }
  for (std::size_t l = 0; i + l < count; ++l) look(l, x[i + l]);
  const T least = *std::ranges::min_element(low);
  const T most = *std::ranges::max_element(high);
  stats.min = static_cast<double>(least);
  stats.max = static_cast<double>(most);
  if constexpr (std::is_same_v<T, std::int64_t>) {
    stats.ordered_min = ordered(least);
    stats.ordered_max = ordered(most);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    stats.ordered_min = least;
    stats.ordered_max = most;
  }
  for (const std::uint32_t lane : zeros) stats.zeros += lane;
}

// Moves the finite numbers to the front and counts the others.
template <typename T>
std::size_t drop_special(T* x, std::size_t count, TensorStats& stats) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isfinite(x[i])) {
      x[kept++] = x[i];
    } else if (std::isnan(x[i])) {
      ++stats.nan;
    } else if (x[i] > 0) {
      ++stats.positive_infinity;
    } else {
      ++stats.negative_infinity;
    }
  }
  return kept;
}

template <typename T>
TensorStats group_stats(T* x, std::size_t count) {
  TensorStats stats;
  stats.count = count;
  double sum = sum_of(x, count);
  std::size_t finite = count;
  if constexpr (std::is_floating_point_v<T>) {
    // NaN and infinities show in the sum.
    if (!std::isfinite(sum)) {
      finite = drop_special(x, count, stats);
      sum = sum_of(x, finite);
    }
  }
  if (finite == 0) return stats;
  order_of(x, finite, stats);
  stats.sum = sum;
  stats.square_sum = square_sum_of(x, finite, sum / static_cast<double>(finite));
  return stats;
}

// Computes in T; small floats are converted to float32.
template <typename T>
TensorStats stats_as(DType dtype, std::span<const std::byte> elements) {
  const auto item = static_cast<std::size_t>(item_bytes(dtype));
  const bool same = item == sizeof(T) && (!std::is_same_v<T, float> || dtype == DType::kFloat32);
  TensorStats stats;
  Group<T> group;
  for (std::size_t at = 0; at < elements.size(); at += kStatsGroup * item) {
    const auto part = elements.subspan(at, std::min(kStatsGroup * item, elements.size() - at));
    const std::size_t count = part.size() / item;
    if (same) {
      std::memcpy(group.data(), part.data(), part.size());
    } else {
      cast(dtype, part, DType::kFloat32, std::as_writable_bytes(std::span(group).first(count)));
    }
    append(dtype, stats, group_stats(group.data(), count));
  }
  return stats;
}

// Elements hold several values; the figures are those of the values.
TensorStats packed_stats(DType dtype, std::span<const std::byte> elements) {
  const auto item = static_cast<std::size_t>(item_bytes(dtype));
  const auto each = static_cast<std::size_t>(values_of_element(dtype));
  TensorStats stats;
  Group<float> group;
  const std::size_t most = kStatsGroup / each * item;
  for (std::size_t at = 0; at < elements.size(); at += most) {
    const auto part = elements.subspan(at, std::min(most, elements.size() - at));
    const auto values = std::span(group).first(part.size() / item * each);
    unpack_floats(dtype, part, values);
    append(dtype, stats, group_stats(values.data(), values.size()));
  }
  return stats;
}

TensorStats bool_stats(DType dtype, std::span<const std::byte> elements) {
  TensorStats stats;
  Group<std::uint8_t> group;
  for (std::size_t at = 0; at < elements.size(); at += kStatsGroup) {
    const auto part = elements.subspan(at, std::min(kStatsGroup, elements.size() - at));
    for (std::size_t i = 0; i < part.size(); ++i) group[i] = part[i] == std::byte{0} ? 0 : 1;
    append(dtype, stats, group_stats(group.data(), part.size()));
  }
  return stats;
}

template <typename T>
TensorStats complex_group(const std::complex<T>* x, std::size_t count) {
  TensorStats stats;
  stats.count = count;
  for (std::size_t i = 0; i < count; ++i) {
    const auto re = static_cast<double>(x[i].real());
    const auto im = static_cast<double>(x[i].imag());
    if (std::isnan(re) || std::isnan(im)) {
      ++stats.nan;
    } else if (std::isinf(re) || std::isinf(im)) {
      ++stats.complex_infinity;
    } else {
      stats.zeros += re == 0 && im == 0 ? 1 : 0;
      stats.square_sum += re * re + im * im;
    }
  }
  return stats;
}

template <typename T>
TensorStats complex_stats(DType dtype, std::span<const std::byte> elements) {
  const auto item = static_cast<std::size_t>(item_bytes(dtype));
  TensorStats stats;
  Group<std::complex<T>> group;
  for (std::size_t at = 0; at < elements.size(); at += kStatsGroup * item) {
    const auto part = elements.subspan(at, std::min(kStatsGroup * item, elements.size() - at));
    const auto out = std::as_writable_bytes(std::span(group).first(part.size() / item));
    if (dtype == DType::kComplex32) {
      cast(DType::kFloat16, part, DType::kFloat32, out);
    } else {
      std::memcpy(out.data(), part.data(), part.size());
    }
    append(dtype, stats, complex_group(group.data(), part.size() / item));
  }
  return stats;
}

}  // namespace

bool has_numbers(DType dtype) noexcept {
  return dtype <= DType::kFloat8E8M0FNU || is_packed_float(dtype);
}

TensorStats stats_of(DType dtype, std::span<const std::byte> elements) {
  if (is_floating(dtype) && dtype != DType::kFloat64) return stats_as<float>(dtype, elements);
  switch (dtype) {
    case DType::kFloat64:
      return stats_as<double>(dtype, elements);
    case DType::kInt64:
      return stats_as<std::int64_t>(dtype, elements);
    case DType::kInt32:
      return stats_as<std::int32_t>(dtype, elements);
    case DType::kInt16:
      return stats_as<std::int16_t>(dtype, elements);
    case DType::kInt8:
      return stats_as<std::int8_t>(dtype, elements);
    case DType::kUInt8:
      return stats_as<std::uint8_t>(dtype, elements);
    case DType::kUInt16:
      return stats_as<std::uint16_t>(dtype, elements);
    case DType::kUInt32:
      return stats_as<std::uint32_t>(dtype, elements);
    case DType::kUInt64:
      return stats_as<std::uint64_t>(dtype, elements);
    case DType::kBool:
      return bool_stats(dtype, elements);
    case DType::kFloat4E2M1FNx2:
    case DType::kFloat6E2M3FNx4:
    case DType::kFloat6E3M2FNx4:
      return packed_stats(dtype, elements);
    case DType::kComplex128:
      return complex_stats<double>(dtype, elements);
    case DType::kComplex64:
    case DType::kComplex32:
      return complex_stats<float>(dtype, elements);
    default: {
      TensorStats stats;
      stats.count = elements.size() / item_bytes(dtype);
      return stats;
    }
  }
}

void append(DType dtype, TensorStats& stats, const TensorStats& behind) {
  if (behind.finite() != 0) {
    if (is_complex(dtype)) {
      stats.square_sum += behind.square_sum;
    } else if (stats.finite() == 0) {
      stats.min = behind.min;
      stats.max = behind.max;
      stats.ordered_min = behind.ordered_min;
      stats.ordered_max = behind.ordered_max;
      stats.square_sum = behind.square_sum;
    } else {
      const auto n = static_cast<double>(stats.finite());
      const auto m = static_cast<double>(behind.finite());
      const double apart = total(behind) / m - total(stats) / n;
      stats.square_sum += behind.square_sum + apart * apart * (n * (m / (n + m)));
      stats.min = std::min(stats.min, behind.min);
      stats.max = std::max(stats.max, behind.max);
      stats.ordered_min = std::min(stats.ordered_min, behind.ordered_min);
      stats.ordered_max = std::max(stats.ordered_max, behind.ordered_max);
    }
    add_sum(stats, behind.sum);
    stats.sum_rest += behind.sum_rest;
  }
  stats.count += behind.count;
  stats.zeros += behind.zeros;
  stats.nan += behind.nan;
  stats.positive_infinity += behind.positive_infinity;
  stats.negative_infinity += behind.negative_infinity;
  stats.complex_infinity += behind.complex_infinity;
}

void StatsJoiner::add(DType dtype, std::uint64_t first, const TensorStats& block) {
  values_ = values_of_element(dtype);
  early_.emplace(first * values_, block);
  while (!early_.empty() && early_.begin()->first == total_.count) {
    append(dtype, total_, early_.begin()->second);
    early_.erase(early_.begin());
  }
}

std::map<std::uint64_t, TensorStats> StatsJoiner::blocks() const {
  std::map<std::uint64_t, TensorStats> blocks;
  for (const auto& [first, block] : early_) blocks.emplace(first / values_, block);
  if (total_.count != 0) blocks.emplace(0, total_);
  return blocks;
}

std::optional<double> mean_of(DType dtype, const TensorStats& stats) {
  if (stats.finite() == 0 || is_complex(dtype) || !has_numbers(dtype)) return std::nullopt;
  return total(stats) / static_cast<double>(stats.finite());
}

std::optional<double> std_of(DType dtype, const TensorStats& stats) {
  if (stats.finite() < 2 || is_complex(dtype) || !has_numbers(dtype)) return std::nullopt;
  return std::sqrt(stats.square_sum / static_cast<double>(stats.finite() - 1));
}

std::optional<double> rms_of(DType dtype, const TensorStats& stats) {
  if (stats.finite() == 0 || !has_numbers(dtype)) return std::nullopt;
  const double squares = stats.square_sum / static_cast<double>(stats.finite());
  if (is_complex(dtype)) return std::sqrt(squares);
  const double mean = *mean_of(dtype, stats);
  return std::sqrt(squares + mean * mean);
}

}  // namespace fsdp::formats
