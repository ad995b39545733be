// SPDX-License-Identifier: Apache-2.0
// Large tables that are filled from front to back.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::formats {

// Reserves room for `count` elements and asks the kernel for huge pages there: a table of some
// hundred megabytes then costs a hundred page faults instead of a hundred thousand.  What is never
// filled is never taken.  A kernel that has no huge pages changes nothing.
template <typename T>
void reserve_huge(std::vector<T>& table, std::size_t count) {
  constexpr std::uintptr_t kHugeBytes = 2U << 20U;
  table.reserve(count);
  const auto begin = reinterpret_cast<std::uintptr_t>(table.data());
  const std::uintptr_t first = (begin + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
  const std::uintptr_t last = (begin + count * sizeof(T)) / kHugeBytes * kHugeBytes;
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace fsdp::formats
