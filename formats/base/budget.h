// SPDX-License-Identifier: Apache-2.0
// What a process may spend on what it reads: memory, bytes that compressed data expand to, and
// bytes of pickles that are gone through.
//
// A file is hostile until it was read, and a few kilobytes can describe gigabytes: empty lists of a
// deflated pickle, tuples that share tuples, a zstd window.  Limits on each of these would miss the
// next one, so memory is counted where it is taken.  The program that wants that charges each
// allocation (tools/counted_new.cpp replaces operator new); libraries that allocate on their own
// are charged by their callers.  Without a `BudgetScope` nothing is limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>

namespace fsdp::formats {

struct Budget {
  std::uint64_t memory_bytes = 0;    // beyond what was taken before; 0: no limit
  std::uint64_t expanded_bytes = 0;  // that decompression may produce; 0: no limit
  // That readers of pickles may go through: thousands of items may name one and the same archive.
  // 0: no limit.
  std::uint64_t pickle_bytes = 0;
};

// Thrown for memory beyond the budget.  A bad_alloc, for it comes out of operator new.
class OverBudget : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "more memory than the budget allows"; }
};

// Thrown for work beyond the budget.  No Error, for those are told of one file or key, and the next
// one is gone on with: this ends the whole.
class OverWork : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Limits this process while it lives.  One at a time.
class BudgetScope {
 public:
  explicit BudgetScope(const Budget& budget) noexcept;
  BudgetScope(const BudgetScope&) = delete;
  BudgetScope& operator=(const BudgetScope&) = delete;
  ~BudgetScope();
};

// Counts memory.  Thread-safe; takes no memory itself.
// Throws: OverBudget, having counted nothing.
void charge_memory(std::size_t bytes);
void release_memory(std::size_t bytes) noexcept;
// Memory that may still be taken; UINT64_MAX where there is no limit.
std::uint64_t memory_left() noexcept;

// Memory of a library that does not use operator new, counted while it lives.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;
  ~MemoryCharge() { release_memory(bytes_); }
  // It has come to `bytes`.  Throws: OverBudget.
  void grow_to(std::size_t bytes) {
    if (bytes <= bytes_) return;
    charge_memory(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  std::size_t bytes_ = 0;
};

// Count what was decompressed, and what was gone through.  Thread-safe.  Throw: OverWork.
void charge_expansion(std::uint64_t bytes);
void charge_pickle(std::uint64_t bytes);

}  // namespace fsdp::formats
