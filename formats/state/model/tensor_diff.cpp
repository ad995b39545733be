// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/tensor_diff.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/bytes/base/cast.h"
#include "formats/state/model/packed_codes.h"
#include "formats/state/model/quick_diff.h"

namespace fsdp::formats {
namespace {

// Elements looked at together: as float64 both sides stay in a core's first-level cache.
constexpr std::size_t kGroup = 1024;
constexpr std::size_t kLanes = 8;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Numbers = std::array<double, kGroup>;
using Flags = std::array<std::uint8_t, kGroup>;

template <typename T>
void widen(std::span<const std::byte> in, Numbers& out) {
  std::array<T, kGroup> group;
  std::memcpy(group.data(), in.data(), in.size());
  for (std::size_t i = 0; i < in.size() / sizeof(T); ++i) out[i] = static_cast<double>(group[i]);
}

// Returns the bytes of what is compared at a time.
std::size_t compared_bytes(DType dtype) {
  return is_packed_float(dtype) ? 1 : static_cast<std::size_t>(item_bytes(dtype));
}

// `in`: of packed floats their codes.
void to_numbers(DType dtype, std::span<const std::byte> in, Numbers& out) {
  if (is_packed_float(dtype)) return numbers_of_codes(dtype, in, out);
  switch (dtype) {
    case DType::kInt64:
      return widen<std::int64_t>(in, out);
    case DType::kInt32:
      return widen<std::int32_t>(in, out);
    case DType::kInt16:
      return widen<std::int16_t>(in, out);
    case DType::kInt8:
      return widen<std::int8_t>(in, out);
    case DType::kUInt8:
      return widen<std::uint8_t>(in, out);
    case DType::kUInt16:
      return widen<std::uint16_t>(in, out);
    case DType::kUInt32:
      return widen<std::uint32_t>(in, out);
    case DType::kUInt64:
      return widen<std::uint64_t>(in, out);
    case DType::kBool:
      for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] == std::byte{0} ? 0 : 1;
      return;
    default:
      cast(dtype, in, DType::kFloat64, std::as_writable_bytes(std::span(out)));
  }
}

// Sets the flags of elements with unequal bits.
template <typename T>
void unequal_bits(std::span<const std::byte> a, std::span<const std::byte> b, Flags& out) {
  std::array<T, kGroup> x;
  std::array<T, kGroup> y;
  std::memcpy(x.data(), a.data(), a.size());
  std::memcpy(y.data(), b.data(), b.size());
  for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) out[i] = x[i] != y[i] ? 1 : 0;
}

void unequal_bits(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t item,
                  Flags& out) {
  switch (item) {
    case 1:
      return unequal_bits<std::uint8_t>(a, b, out);
    case 2:
      return unequal_bits<std::uint16_t>(a, b, out);
    case 4:
      return unequal_bits<std::uint32_t>(a, b, out);
    case 8:
      return unequal_bits<std::uint64_t>(a, b, out);
    default:
      for (std::size_t i = 0; i < a.size() / item; ++i)
        out[i] = std::memcmp(a.data() + i * item, b.data() + i * item, item) != 0 ? 1 : 0;
  }
}

// Returns the largest number of representable numbers from one element to the other, over the pairs
// for which `counts` is not 0.  Elements are codes of a sign and a magnitude, or (e8m0) of a
// magnitude alone.  If `limit` is given, clears the flags in `beyond` of pairs within it.
template <typename T>
std::uint64_t ulps(std::span<const std::byte> a, std::span<const std::byte> b, bool has_sign,
                   const Flags& counts, std::optional<std::uint64_t> limit, Flags& beyond) {
  std::array<T, kGroup> x;
  std::array<T, kGroup> y;
  std::memcpy(x.data(), a.data(), a.size());
  std::memcpy(y.data(), b.data(), b.size());
  const std::size_t count = a.size() / sizeof(T);
  const auto sign = static_cast<T>(has_sign ? T{1} << (sizeof(T) * 8 - 1) : 0);
  const auto rest = static_cast<T>(~sign);
  for (std::size_t i = 0; i < count; ++i) {
    const auto left = static_cast<T>(x[i] & rest);
    const auto right = static_cast<T>(y[i] & rest);
    const auto alike = static_cast<T>(left > right ? left - right : right - left);
    x[i] = ((x[i] ^ y[i]) & sign) != 0 ? static_cast<T>(left + right) : alike;
  }
  T most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const T here = counts[i] != 0 ? x[i] : T{0};
    most = here > most ? here : most;
  }
  for (std::size_t i = 0; limit && i < count; ++i)
    beyond[i] = static_cast<std::uint8_t>(beyond[i] & (x[i] <= *limit ? 0 : 1));
  return most;
}

std::uint64_t ulps(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                   const Flags& counts, std::optional<std::uint64_t> limit, Flags& beyond) {
  const bool has_sign = dtype != DType::kFloat8E8M0FNU;
  switch (compared_bytes(dtype)) {
    case 1:
      return ulps<std::uint8_t>(a, b, has_sign, counts, limit, beyond);
    case 2:
      return ulps<std::uint16_t>(a, b, has_sign, counts, limit, beyond);
    case 4:
      return ulps<std::uint32_t>(a, b, has_sign, counts, limit, beyond);
    default:
      return ulps<std::uint64_t>(a, b, has_sign, counts, limit, beyond);
  }
}

// Counts the flags that are set.
std::uint64_t sum_of(const Flags& flags, std::size_t count) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += flags[i];
  return sum;
}

bool any_special(const Numbers& numbers, std::size_t count) {
  std::array<double, kLanes> sum{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    // 0 * infinity and 0 * NaN are NaN.
    for (std::size_t l = 0; l < kLanes; ++l) sum[l] += numbers[i + l] * 0.0;
  }
  for (std::size_t l = 0; i + l < count; ++l) sum[l] += numbers[i + l] * 0.0;
  for (const double lane : sum) {
    if (lane != 0) return true;
  }
  return false;
}

// The distance of each pair of elements, and the sizes of both.
struct Distances {
  Numbers apart;         // NaN where one of the pair is
  Numbers left;          // of real numbers: with their sign
  Numbers size;          // of the right one
  bool special = false;  // some are NaN or infinite
};

void real_distances(DType left_dtype, std::span<const std::byte> left, DType right_dtype,
                    std::span<const std::byte> right, std::size_t count, Distances& out) {
  Numbers& a = out.left;
  Numbers& b = out.size;
  to_numbers(left_dtype, left, a);
  to_numbers(right_dtype, right, b);
  out.special = any_special(a, count) || any_special(b, count);
  for (std::size_t i = 0; i < count; ++i) out.apart[i] = std::abs(a[i] - b[i]);
  if (out.special) {
    for (std::size_t i = 0; i < count; ++i) {
      if (a[i] == b[i]) out.apart[i] = 0;  // infinities
    }
  }
  // Adjacent 64-bit integers may be the same float64.
  const bool wide =
      left_dtype == right_dtype && (left_dtype == DType::kInt64 || left_dtype == DType::kUInt64);
  for (std::size_t i = 0; wide && i < count; ++i) {
    std::uint64_t x = 0;
    std::uint64_t y = 0;
    std::memcpy(&x, left.data() + i * 8, 8);
    std::memcpy(&y, right.data() + i * 8, 8);
    const std::uint64_t flip = left_dtype == DType::kInt64 ? std::uint64_t{1} << 63U : 0;
    x ^= flip;
    y ^= flip;
    out.apart[i] = static_cast<double>(x > y ? x - y : y - x);
  }
  for (std::size_t i = 0; i < count; ++i) b[i] = std::abs(b[i]);
}

// Returns the dtype of the parts of a complex number.
DType part_type(DType dtype) {
  return dtype == DType::kComplex128  ? DType::kFloat64
         : dtype == DType::kComplex64 ? DType::kFloat32
                                      : DType::kFloat16;
}

void complex_distances(DType left_dtype, std::span<const std::byte> left, DType right_dtype,
                       std::span<const std::byte> right, std::size_t count, Distances& out) {
  std::array<double, 2 * kGroup> a;
  std::array<double, 2 * kGroup> b;
  cast(part_type(left_dtype), left, DType::kFloat64, std::as_writable_bytes(std::span(a)));
  cast(part_type(right_dtype), right, DType::kFloat64, std::as_writable_bytes(std::span(b)));
  for (std::size_t i = 0; i < count; ++i) {
    const double re = a[2 * i] == b[2 * i] ? 0 : a[2 * i] - b[2 * i];
    const double im = a[2 * i + 1] == b[2 * i + 1] ? 0 : a[2 * i + 1] - b[2 * i + 1];
    const bool nan = std::isnan(re) || std::isnan(im);  // hypot(inf, nan) is infinite
    out.apart[i] = nan ? std::numeric_limits<double>::quiet_NaN() : std::hypot(re, im);
    out.left[i] = std::hypot(a[2 * i], a[2 * i + 1]);
    out.size[i] = std::hypot(b[2 * i], b[2 * i + 1]);
    out.special = out.special || !std::isfinite(out.apart[i]) || !std::isfinite(out.size[i]);
  }
}

// Returns whether `is` holds for element `i`, or for either part of a complex one; for integers it
// never does.
template <typename Is>
bool any_part(DType dtype, std::span<const std::byte> elements, std::size_t i, const Is& is) {
  if (!is_floating(dtype) && !is_complex(dtype)) return false;
  const auto item = static_cast<std::size_t>(item_bytes(dtype));
  const auto element = elements.subspan(i * item, item);
  std::array<double, 2> parts{};
  const auto out = std::as_writable_bytes(std::span(parts));
  if (is_complex(dtype)) {
    cast(part_type(dtype), element, DType::kFloat64, out);
  } else {
    cast(dtype, element, DType::kFloat64, out.first(sizeof(double)));
  }
  return is(parts[0]) || is(parts[1]);
}

bool is_nan(DType dtype, std::span<const std::byte> elements, std::size_t i) {
  return any_part(dtype, elements, i, [](double part) { return std::isnan(part); });
}

bool is_finite(DType dtype, std::span<const std::byte> elements, std::size_t i) {
  return !any_part(dtype, elements, i, [](double part) { return !std::isfinite(part); });
}

bool is_real(DType dtype) {
  return dtype <= DType::kFloat8E8M0FNU && !is_complex(dtype);
}

bool has_distances(DType dtype) {
  return is_real(dtype) || is_complex(dtype) || is_packed_float(dtype);
}

// Compares one group of elements.
class GroupComparison {
 public:
  GroupComparison(DType left_dtype, DType right_dtype, const Tolerance& tolerance,
                  TensorDifference& difference)
      : left_dtype_(left_dtype),
        right_dtype_(right_dtype),
        same_dtype_(left_dtype == right_dtype),
        numbers_(has_distances(left_dtype)),
        floating_(same_dtype_ && (is_floating(left_dtype) || is_packed_float(left_dtype))),
        tolerance_(tolerance),
        difference_(difference) {}

  void run(std::span<const std::byte> left, std::span<const std::byte> right, std::size_t count,
           std::uint64_t first) {
    left_ = left;
    right_ = right;
    count_ = count;
    first_ = first;
    if (numbers_) measure();
    if (same_dtype_) {
      unequal_bits(left, right, compared_bytes(left_dtype_), unequal_);
    } else {
      for (std::size_t i = 0; i < count; ++i) unequal_[i] = distances_.apart[i] == 0 ? 0 : 1;
    }
    judge();
    record();
    if (numbers_) add_norms();
  }

 private:
  void measure() {
    distances_.special = false;
    if (is_complex(left_dtype_)) {
      complex_distances(left_dtype_, left_, right_dtype_, right_, count_, distances_);
    } else {
      real_distances(left_dtype_, left_, right_dtype_, right_, count_, distances_);
    }
  }

  // Sets the flags of elements that lie beyond the tolerance.
  void judge() {
    if (tolerance_.exact || !numbers_) {
      beyond_ = unequal_;
    } else {
      for (std::size_t i = 0; i < count_; ++i) {
        const double allowed = tolerance_.atol + tolerance_.rtol * distances_.size[i];
        beyond_[i] =
            static_cast<std::uint8_t>(unequal_[i] & (distances_.apart[i] <= allowed ? 0U : 1U));
      }
    }
    if (floating_) measure_ulps();
    if (numbers_ && distances_.special) judge_special();
  }

  // Judges NaN and infinities, after everything else.
  void judge_special() {
    for (std::size_t i = 0; i < count_; ++i) {
      if (unequal_[i] == 0) continue;
      const bool left_nan = is_nan(left_dtype_, left_, i);
      const bool right_nan = is_nan(right_dtype_, right_, i);
      difference_.nan_left += left_nan ? 1 : 0;
      difference_.nan_right += right_nan ? 1 : 0;
      if (left_nan || right_nan) {
        beyond_[i] = left_nan && right_nan && tolerance_.nan_equal ? 0 : 1;
      } else if (distances_.apart[i] == kInfinity) {
        beyond_[i] = 1;  // an infinity and something else, or too far apart for float64
      }
    }
  }

  void record() {
    difference_.unequal += sum_of(unequal_, count_);
    const std::uint64_t different = sum_of(beyond_, count_);
    if (different != 0) {
      const auto at = static_cast<std::uint64_t>(
          std::find(beyond_.begin(), beyond_.begin() + static_cast<std::ptrdiff_t>(count_), 1) -
          beyond_.begin());
      if (difference_.different == 0 || first_ + at < difference_.first)
        difference_.first = first_ + at;
      difference_.different += different;
    }
    if (numbers_) record_distances();
  }

  // Adds the norms.  Called last: zeroes the figures of pairs without a distance.
  void add_norms() {
    for (std::size_t i = 0; distances_.special && i < count_; ++i) {
      if (std::isfinite(distances_.left[i]) && std::isfinite(distances_.size[i])) continue;
      // The absolute value of a finite complex number may be too large.
      if (is_finite(left_dtype_, left_, i) && is_finite(right_dtype_, right_, i)) continue;
      difference_.unbounded += unequal_[i];
      distances_.left[i] = distances_.apart[i] = 0;
    }
    difference_.left.add(std::span(distances_.left).first(count_));
    difference_.apart.add(std::span(distances_.apart).first(count_));
  }

  void record_distances() {
    std::array<double, kLanes> apart{};
    std::array<double, kLanes> relative{};
    const auto look = [&](std::size_t l, std::size_t i) {
      const double distance = distances_.apart[i];
      const double ratio = distance / distances_.size[i];  // 0 / 0 is NaN and stays out
      apart[l] = distance > apart[l] ? distance : apart[l];
      relative[l] = ratio > relative[l] ? ratio : relative[l];
    };
    std::size_t i = 0;
    for (; i + kLanes <= count_; i += kLanes) {
      for (std::size_t l = 0; l < kLanes; ++l) look(l, i + l);
    }
    for (std::size_t l = 0; i + l < count_; ++l) look(l, i + l);
    difference_.max_rel = std::max(difference_.max_rel, *std::ranges::max_element(relative));
    const double most = *std::ranges::max_element(apart);
    if (most == 0 || most < difference_.max_abs) return;
    const std::uint64_t at =
        first_ + static_cast<std::uint64_t>(std::ranges::find(distances_.apart, most) -
                                            distances_.apart.begin());
    if (most > difference_.max_abs || at < difference_.max_abs_at) difference_.max_abs_at = at;
    difference_.max_abs = most;
  }

  // Called before NaN and infinities are judged: their codes are next to those of numbers.
  void measure_ulps() {
    Flags counts = unequal_;
    for (std::size_t i = 0; distances_.special && i < count_; ++i)
      counts[i] = distances_.apart[i] < kInfinity ? 1 : 0;
    const std::uint64_t most = ulps(left_dtype_, left_, right_, counts,
                                    tolerance_.exact ? std::nullopt : tolerance_.ulp, beyond_);
    difference_.max_ulp = std::max(difference_.max_ulp.value_or(0), most);
  }

  DType left_dtype_;
  DType right_dtype_;
  bool same_dtype_;
  bool numbers_;
  bool floating_;
  const Tolerance& tolerance_;
  TensorDifference& difference_;
  std::span<const std::byte> left_;
  std::span<const std::byte> right_;
  std::size_t count_ = 0;
  std::uint64_t first_ = 0;
  Distances distances_;
  Flags unequal_;
  Flags beyond_;
};

// Zeroes numbers that are not finite; of complex numbers the other part too.
void drop_special(Numbers& numbers, std::size_t count, bool complex) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isfinite(numbers[i])) continue;
    numbers[i] = 0;
    if (complex) numbers[i ^ 1U] = 0;
  }
}

// Adds numbers that both sides share to the norm of the left one.
void add_equal(DType dtype, std::span<const std::byte> group, TensorDifference& difference) {
  if (!has_distances(dtype)) return;
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) {
    const double sum = dtype == DType::kFloat32 ? float_squares(group) : bfloat16_squares(group);
    if (std::isfinite(sum)) return difference.left.add_sum(sum);
  }
  const DType part = is_complex(dtype) ? part_type(dtype) : dtype;
  const std::size_t item = compared_bytes(part);
  Numbers numbers;
  for (std::size_t at = 0; at < group.size(); at += kGroup * item) {
    const auto some = group.subspan(at, std::min(kGroup * item, group.size() - at));
    const std::size_t count = some.size() / item;
    to_numbers(part, some, numbers);
    if (any_special(numbers, count)) drop_special(numbers, count, is_complex(dtype));
    difference.left.add(std::span(numbers).first(count));
  }
}

}  // namespace

Tolerance close_tolerance(DType dtype) noexcept {
  Tolerance tolerance;
  tolerance.exact = false;
  const auto set = [&](double rtol, double atol) {
    tolerance.rtol = rtol;
    tolerance.atol = atol;
  };
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      set(1e-7, 1e-7);
      break;
    case DType::kFloat32:
    case DType::kComplex64:
      set(1.3e-6, 1e-5);
      break;
    case DType::kFloat16:
    case DType::kComplex32:
      set(1e-3, 1e-5);
      break;
    case DType::kBFloat16:
      set(1.6e-2, 1e-5);
      break;
    default:
      break;
  }
  return tolerance;
}

bool comparable(DType left, DType right) noexcept {
  return left == right || (is_real(left) && is_real(right)) ||
         (is_complex(left) && is_complex(right)) ||
         (is_packed_float(left) && values_of_element(left) == values_of_element(right));
}

void compare_elements(DType left_dtype, std::span<const std::byte> left, DType right_dtype,
                      std::span<const std::byte> right, std::uint64_t first,
                      const Tolerance& tolerance, TensorDifference& difference) {
  const auto left_item = static_cast<std::size_t>(item_bytes(left_dtype));
  const auto right_item = static_cast<std::size_t>(item_bytes(right_dtype));
  const auto each = static_cast<std::size_t>(values_of_element(left_dtype));
  const std::size_t count = left.size() / left_item;
  difference.count += count * each;
  const bool same_dtype = left_dtype == right_dtype;
  const bool packed = each != 1;
  std::array<std::array<std::byte, kGroup>, 2> codes;
  GroupComparison comparison(left_dtype, right_dtype, tolerance, difference);
  for (std::size_t at = 0; at < count; at += kGroup / each) {
    const std::size_t n = std::min(kGroup / each, count - at);
    auto a = left.subspan(at * left_item, n * left_item);
    auto b = right.subspan(at * right_item, n * right_item);
    const bool equal = same_dtype && std::memcmp(a.data(), b.data(), a.size()) == 0;
    if (packed) {
      a = spread_codes(left_dtype, a, codes[0]);
      b = spread_codes(right_dtype, b, codes[1]);
    }
    if (equal) {
      add_equal(left_dtype, a, difference);
      continue;
    }
    if (same_dtype && left_dtype == DType::kFloat32) {
      if (const auto quick = quick_counts(a, b, first + at, tolerance, difference)) {
        difference.unequal += quick->unequal;
        difference.different += quick->different;
        const PairSquares squares = pair_squares(a, b);
        difference.left.add_sum(squares.left);
        difference.apart.add_sum(squares.apart);
        continue;
      }
    }
    comparison.run(a, b, n * each, (first + at) * each);
  }
}

void merge(TensorDifference& difference, const TensorDifference& other) {
  if (other.different != 0 && (difference.different == 0 || other.first < difference.first))
    difference.first = other.first;
  if (other.max_abs > difference.max_abs ||
      (other.max_abs == difference.max_abs && other.max_abs_at < difference.max_abs_at)) {
    difference.max_abs = other.max_abs;
    difference.max_abs_at = other.max_abs_at;
  }
  if (other.max_ulp) difference.max_ulp = std::max(difference.max_ulp.value_or(0), *other.max_ulp);
  difference.max_rel = std::max(difference.max_rel, other.max_rel);
  difference.count += other.count;
  difference.unequal += other.unequal;
  difference.different += other.different;
  difference.nan_left += other.nan_left;
  difference.nan_right += other.nan_right;
  difference.left.add(other.left);
  difference.apart.add(other.apart);
  difference.unbounded += other.unbounded;
}

double relative_change(const SquareSum& apart, const SquareSum& left) {
  const double distance = apart.root();
  return distance == 0 ? 0 : distance / left.root();
}

}  // namespace fsdp::formats
