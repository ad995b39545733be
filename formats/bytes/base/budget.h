// SPDX-License-Identifier: Apache-2.0
// Limits what a process spends on its input: memory, bytes that compressed data expand to, and
// bytes of pickles that are scanned.
//
// A file is not trusted until it has been read.  A few kilobytes can describe gigabytes: empty
// lists of a deflated pickle, tuples that share tuples, a zstd window.  A limit on each of these
// would miss the next trick, so memory is counted where it is allocated.  A program that wants
// limits charges each allocation (tools/base/counted_new.cpp replaces operator new); libraries that
// allocate on their own are charged by their callers.  Without a `BudgetScope` nothing is limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>

#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

struct Budget {
  std::uint64_t memory_bytes = 0;    // beyond what was allocated before; 0: no limit
  std::uint64_t expanded_bytes = 0;  // output of decompression; 0: no limit
  // Bytes that readers of pickles may scan; thousands of items may name the same archive. 0: no
  // limit.
  std::uint64_t pickle_bytes = 0;
};

// Thrown for memory beyond the budget.  A bad_alloc, because operator new throws it.
class OverBudget : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "more memory than the budget allows"; }
};

// Thrown for work beyond the budget.  Not an Error: an Error concerns one file or key, and work
// goes on with the next one; this ends the whole run.
class OverWork : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Limits this process until it is destroyed.  Only one may exist at a time.
class BudgetScope : NotCopied {
 public:
  explicit BudgetScope(const Budget& budget) noexcept;
  ~BudgetScope();
};

// Count memory.  Thread-safe; they allocate none themselves.
// Throws: OverBudget, having counted nothing.
void charge_memory(std::size_t bytes);
void release_memory(std::size_t bytes) noexcept;
// Returns the memory that may still be allocated; UINT64_MAX if there is no limit.
std::uint64_t memory_left() noexcept;

// Counts memory of a library that does not use operator new, until it is destroyed.
class MemoryCharge : NotCopied {
 public:
  ~MemoryCharge() { release_memory(bytes_); }
  // Raises the charge to `bytes`.  Throws: OverBudget.
  void grow_to(std::size_t bytes) {
    if (bytes <= bytes_) return;
    charge_memory(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  std::size_t bytes_ = 0;
};

// Count bytes that were decompressed, and bytes that were scanned.  Thread-safe.  Throw: OverWork.
void charge_expansion(std::uint64_t bytes);
void charge_pickle(std::uint64_t bytes);

}  // namespace fsdp::formats
