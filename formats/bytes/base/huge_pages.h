// SPDX-License-Identifier: Apache-2.0
// Large memory in huge pages, if the kernel has some.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::formats {

// Asks the kernel for huge pages for memory that has not been touched yet.  Has no effect if the
// kernel has none.
inline void advise_huge(void* memory, std::size_t bytes) {
  constexpr std::uintptr_t kHugeBytes = 2U << 20U;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
  const std::uintptr_t last = (begin + bytes) / kHugeBytes * kHugeBytes;
  if (first < last)
    (void)::madvise(static_cast<char*>(memory) + (first - begin), last - first, MADV_HUGEPAGE);
}

// Reserves room for `count` elements in huge pages: a table of some hundred megabytes then costs a
// hundred page faults instead of a hundred thousand.  Pages that are never filled are never
// allocated.
template <typename T>
void reserve_huge(std::vector<T>& table, std::size_t count) {
  table.reserve(count);
  advise_huge(table.data(), count * sizeof(T));
}

}  // namespace fsdp::formats
