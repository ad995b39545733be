// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that come from a file: overflow is an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// Returns a + b.  Throws: kOverflow naming `what`.
inline std::uint64_t checked_add(std::uint64_t a, std::uint64_t b, std::string_view what) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result))
    throw Error(ErrorCode::kOverflow, what, " overflows: ", a, " + ", b);
  return result;
}

// Returns a * b.  Throws: kOverflow naming `what`.
inline std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b, std::string_view what) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw Error(ErrorCode::kOverflow, what, " overflows: ", a, " * ", b);
  return result;
}

// Returns the number of elements of a shape: 1 for rank 0, and 0 if any dimension is 0.
// Requires: no dimension is negative.  Throws: kOverflow if the number exceeds 2^63 - 1.
inline std::uint64_t checked_numel(std::span<const std::int64_t> shape, std::string_view what) {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) {
    numel = checked_mul(numel, static_cast<std::uint64_t>(size), what);
    if (numel > static_cast<std::uint64_t>(INT64_MAX))
      throw Error(ErrorCode::kOverflow, what, " has more than 2^63 - 1 elements");
  }
  return numel;
}

}  // namespace fsdp::formats
