// SPDX-License-Identifier: Apache-2.0
// Statistics of a tensor's elements: extremes, mean, spread, and counts of zero, NaN and infinity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

// Statistics of finite elements only, except for the counts.  Sums are in float64 over groups of
// 4096 elements (`kStatsGroup`), squares are of distances from the group's mean; groups are joined
// in the order of the tensor, sums with compensation.  A tensor has the same figures however it is
// stored and however many threads there are.
struct TensorStats {
  std::uint64_t count = 0;
  std::uint64_t zeros = 0;  // of either sign; complex: both parts
  std::uint64_t nan = 0;    // complex: either part
  std::uint64_t positive_infinity = 0;
  std::uint64_t negative_infinity = 0;
  std::uint64_t complex_infinity = 0;  // complex: a part is infinite, none is NaN
  double min = 0;                      // if finite() is not 0; complex: without meaning
  double max = 0;
  // Extremes of 64-bit integers, which float64 cannot hold, as `ordered` numbers.
  std::uint64_t ordered_min = 0;
  std::uint64_t ordered_max = 0;
  double sum = 0;
  double sum_rest = 0;    // the rounding error of `sum`
  double square_sum = 0;  // of the distances from the mean; complex: of absolute values

  std::uint64_t infinite() const {
    return positive_infinity + negative_infinity + complex_infinity;
  }
  std::uint64_t finite() const { return count - nan - infinite(); }
};

inline constexpr std::size_t kStatsGroup = 4096;  // elements

// Returns whether the elements are numbers, or hold several floats of 4 or 6 bits: for quantized,
// other packed and bit types only counts are known.
bool has_numbers(DType dtype) noexcept;

// Computes statistics of consecutive elements that begin at a multiple of kStatsGroup.  bool counts
// as 0 and 1.  Of elements that hold several values each value counts.  Types without numbers:
// `count` only.
TensorStats stats_of(DType dtype, std::span<const std::byte> elements);

// Extends `stats` by `behind`, the statistics of the elements that follow.
void append(DType dtype, TensorStats& stats, const TensorStats& behind);

// Joins blocks that come in any order.
class StatsJoiner {
 public:
  // `first`: the number of elements before the block.
  void add(DType dtype, std::uint64_t first, const TensorStats& block);
  // Requires: every block was added.
  const TensorStats& total() const { return total_; }
  // Returns the blocks added so far by their first elements, with those from the tensor's beginning
  // as one.  Another joiner that gets these and the missing blocks has the same total.
  std::map<std::uint64_t, TensorStats> blocks() const;

 private:
  TensorStats total_;
  std::uint64_t values_ = 1;                    // in an element
  std::map<std::uint64_t, TensorStats> early_;  // before their turn, by `first`
};

// Return derived figures; nothing if they are not defined: no finite elements, complex types, for
// `std` fewer than two elements.  Infinity beyond the range of float64.
std::optional<double> mean_of(DType dtype, const TensorStats& stats);
std::optional<double> std_of(DType dtype, const TensorStats& stats);  // divided by n - 1
std::optional<double> rms_of(DType dtype, const TensorStats& stats);  // complex: of |z|

// 64-bit integers as unsigned numbers in the same order, and back.
constexpr std::uint64_t ordered(std::int64_t number) {
  return static_cast<std::uint64_t>(number) ^ (std::uint64_t{1} << 63U);
}
constexpr std::int64_t from_ordered(std::uint64_t code) {
  return static_cast<std::int64_t>(code ^ (std::uint64_t{1} << 63U));
}

}  // namespace fsdp::formats
