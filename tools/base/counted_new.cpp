// SPDX-License-Identifier: Apache-2.0
// An operator new that counts: memory from the heap is charged to the program's budget.
//
// Not used with sanitizers, which have an operator new that finds more errors; memory is then not
// limited.
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "formats/bytes/base/budget.h"
#include "tools/base/memory_budget.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FSDP_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define FSDP_SANITIZED 1
#endif
#endif

namespace fsdp::cli {

#ifdef FSDP_SANITIZED
bool counts_memory() noexcept {
  return false;
}
#else
bool counts_memory() noexcept {
  return true;
}
#endif

}  // namespace fsdp::cli

#ifndef FSDP_SANITIZED

namespace {

// Counts the usable size of the allocation, because that is what free gives back.  Untouched memory
// costs nothing, so it may be allocated before it is counted.
void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  try {
    fsdp::formats::charge_memory(::malloc_usable_size(memory));
  } catch (...) {
    std::free(memory);
    throw;
  }
  return memory;
}

void give_back(void* memory) noexcept {
  if (memory == nullptr) return;
  fsdp::formats::release_memory(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// The library's array and nothrow forms call this one.
void* operator new(std::size_t bytes) {
  return counted(std::malloc(std::max<std::size_t>(bytes, 1)));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  const bool failed = ::posix_memalign(&memory, static_cast<std::size_t>(alignment),
                                       std::max<std::size_t>(bytes, 1)) != 0;
  return counted(failed ? nullptr : memory);
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}

#endif
