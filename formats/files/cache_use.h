// SPDX-License-Identifier: Apache-2.0
// Whether an output goes through the page cache or past it.
//
// Note [page cache or disk]: written through the page cache, bytes are there for whoever reads them
// next, and where the kernel has free memory a copy there takes less time than the disk does.
// Where it has not (it must write out or throw away other pages first; a virtual machine must ask
// its host for the memory), the copy takes several times as long as the disk: then it is better
// left out, the file goes past the cache with O_DIRECT, and nothing else is pushed out of it.
// Which of the two it is shows in the time that the processor spends on a copy: a thread that only
// waits for a slow disk spends none.  Once past the cache, an output stays there: a file that is
// written in both ways by turns is slower than either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "formats/files/copy_pace.h"
#include "formats/files/output_file.h"

namespace fsdp::formats {

// Whether what is written stays in the page cache.
enum class CacheUse {
  kAlways,
  // As long as the kernel has memory for it at hand, see Note [page cache or disk].
  kWhileQuick,
  kNever,
};

// Decides it from the pace of the copies.  Thread-safe.
class CacheChoice {
 public:
  explicit CacheChoice(CacheUse use) : use_(use) {}
  bool past_cache() const { return use_.load(std::memory_order_relaxed) == CacheUse::kNever; }
  // OutputFile::put_at, whose pace counts where the bytes are many enough to tell.
  // Requires: nobody else writes `file` meanwhile; who waits for it would spin, which would count.
  // Throws: as put_at.
  void put(OutputFile& file, std::uint64_t offset, std::span<const std::byte> bytes);

 private:
  std::atomic<CacheUse> use_;
  std::mutex mutex_;
  CopyPace pace_;
};

}  // namespace fsdp::formats
