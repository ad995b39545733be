// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/quick_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/bytes/base/vector_clones.h"

namespace fsdp::formats {
namespace {

constexpr std::uint32_t kExponent = 0x7F800000;
constexpr std::uint32_t kMagnitude = 0x7FFFFFFF;
// A relative slack, larger than the rounding of the few float32 operations below and of the float64
// ones of compare_elements.
constexpr double kSlack = 4e-6;
// Products below this may lose more than the relative slack.
constexpr float kTooSmall = 1e-30F;

// Returns a bound in float32 that every number above `most` exceeds, even after rounding.
float below(double most) {
  if (std::isinf(most)) return std::numeric_limits<float>::infinity();
  return static_cast<float>(
      std::min(most * (1 - kSlack), double{std::numeric_limits<float>::max()}));
}

struct Bounds {
  float apart;
  float relative;
  std::uint32_t ulp;
  float atol;
  float rtol;
};

struct Seen {
  std::uint32_t unequal = 0;
  std::uint32_t beyond = 0;
  std::uint32_t undecided = 0;  // not 0: may lie beyond the tolerance or within it
  std::uint32_t more = 0;       // not 0: NaN, infinite, or more ulps apart than `known` has
  std::uint32_t grows = 0;      // not 0: the largest distance may lie here
};

// Without branches, so that compilers process several elements in each step.
template <bool kExact>
inline __attribute__((always_inline)) Seen look_at(std::span<const std::byte> left,
                                                   std::span<const std::byte> right,
                                                   const Bounds& bounds) {
  Seen seen;
  const std::size_t count = left.size() / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t x;
    std::uint32_t y;
    std::memcpy(&x, left.data() + i * sizeof(x), sizeof(x));
    std::memcpy(&y, right.data() + i * sizeof(y), sizeof(y));
    float a;
    float b;
    std::memcpy(&a, left.data() + i * sizeof(a), sizeof(a));
    std::memcpy(&b, right.data() + i * sizeof(b), sizeof(b));
    const std::uint32_t unequal = x != y ? 1 : 0;
    const float apart = std::fabs(a - b);
    const float size = std::fabs(b);
    const std::uint32_t special =
        ((x & kExponent) == kExponent ? 1U : 0U) | ((y & kExponent) == kExponent ? 1U : 0U);
    const auto m = static_cast<std::int32_t>(x & kMagnitude);
    const auto n = static_cast<std::int32_t>(y & kMagnitude);
    const std::uint32_t alike = static_cast<std::uint32_t>(m > n ? m - n : n - m);
    const std::uint32_t across = static_cast<std::uint32_t>(m) + static_cast<std::uint32_t>(n);
    const std::uint32_t ulp = ((x ^ y) & ~kMagnitude) != 0 ? across : alike;
    const std::uint32_t grows =
        (apart >= bounds.apart ? 1U : 0U) | (apart >= bounds.relative * size ? 1U : 0U);
    seen.unequal += unequal;
    seen.more |= special | (ulp > bounds.ulp ? 1U : 0U);
    seen.grows |= grows & (apart > 0 ? 1U : 0U);
    if constexpr (!kExact) {
      const float allowed = bounds.atol + bounds.rtol * size;
      const std::uint32_t beyond = apart > allowed * static_cast<float>(1 + kSlack) ? 1 : 0;
      const std::uint32_t within = apart < allowed * static_cast<float>(1 - kSlack) ? 1 : 0;
      const std::uint32_t small = allowed < kTooSmall ? 1 : 0;
      seen.beyond += beyond & unequal;
      seen.undecided |= unequal & (((beyond | within) ^ 1U) | small);
    }
  }
  return seen;
}

FSDP_WIDE_VECTORS Seen look_exact(std::span<const std::byte> left, std::span<const std::byte> right,
                                  const Bounds& bounds) {
  return look_at<true>(left, right, bounds);
}

FSDP_WIDE_VECTORS Seen look_close(std::span<const std::byte> left, std::span<const std::byte> right,
                                  const Bounds& bounds) {
  return look_at<false>(left, right, bounds);
}

// Returns whether finite elements lie further apart than `most`, or relatively further than
// `relative`: in float64, as compare_elements counts them.
FSDP_WIDE_VECTORS bool grows(std::span<const std::byte> left, std::span<const std::byte> right,
                             double most, double relative) {
  std::uint64_t found = 0;
  const std::size_t count = left.size() / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) {
    float a;
    float b;
    std::memcpy(&a, left.data() + i * sizeof(a), sizeof(a));
    std::memcpy(&b, right.data() + i * sizeof(b), sizeof(b));
    const double apart = std::fabs(static_cast<double>(a) - static_cast<double>(b));
    const double ratio =
        apart / std::fabs(static_cast<double>(b));  // NaN, from 0 / 0, is not larger
    found |= (apart > most ? 1U : 0U) | (ratio > relative ? 1U : 0U);
  }
  return found != 0;
}

}  // namespace

std::optional<QuickCounts> quick_counts(std::span<const std::byte> left,
                                        std::span<const std::byte> right, std::uint64_t first,
                                        const Tolerance& tolerance, const TensorDifference& known) {
  if (!known.max_ulp || (!tolerance.exact && tolerance.ulp)) return std::nullopt;
  const Bounds bounds{below(known.max_abs), below(known.max_rel),
                      static_cast<std::uint32_t>(*known.max_ulp),
                      static_cast<float>(tolerance.atol), static_cast<float>(tolerance.rtol)};
  const Seen seen =
      tolerance.exact ? look_exact(left, right, bounds) : look_close(left, right, bounds);
  if ((seen.more | seen.undecided) != 0) return std::nullopt;
  // Of equal distances the first is reported.
  if (seen.grows != 0 &&
      (first < known.max_abs_at || grows(left, right, known.max_abs, known.max_rel)))
    return std::nullopt;
  const QuickCounts counts{seen.unequal, tolerance.exact ? seen.unequal : seen.beyond};
  // The first element that differs may lie here.
  if (counts.different != 0 && (known.different == 0 || first < known.first)) return std::nullopt;
  return counts;
}

}  // namespace fsdp::formats
