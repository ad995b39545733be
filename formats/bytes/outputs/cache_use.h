// SPDX-License-Identifier: Apache-2.0
// Decides whether an output goes through the page cache or past it.
//
// Note [page cache or disk]: bytes written through the page cache are there for the next reader,
// and while the kernel has free memory a copy into it takes less time than the disk.  If the kernel
// has none (it must write out or drop other pages first; a virtual machine must ask its host for
// memory), the copy takes several times as long as the disk: then the file goes past the cache with
// O_DIRECT, which also pushes nothing else out of the cache.  The processor time spent on a copy
// shows which case applies: a thread that only waits for a slow disk spends none.  Once past the
// cache, an output stays there: a file that is written in both ways by turns is slower than either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "formats/bytes/outputs/file.h"

namespace fsdp::formats {

// Copies into free memory reach 4 GB/s and more, into memory that must be reclaimed first 0.5 GB/s.
// At the start one slow block decides; after quick ones it takes two.
class CopyPace {
 public:
  // Records that copying `bytes` took `seconds` of processor time.
  void add(std::size_t bytes, double seconds) {
    constexpr double kWeight = 0.25;
    seconds_a_byte_ += kWeight * (seconds / static_cast<double>(bytes) - seconds_a_byte_);
  }
  bool slow() const {
    constexpr double kSlow = 1 / 1.5e9;
    return seconds_a_byte_ > kSlow;
  }

 private:
  double seconds_a_byte_ = 1 / 4e9;
};

// The use of the page cache by an output.
enum class CacheUse {
  kAlways,
  // While the kernel has free memory, see Note [page cache or disk].
  kWhileQuick,
  kNever,
};

// Decides from the pace of the copies.  Thread-safe.
class CacheChoice {
 public:
  explicit CacheChoice(CacheUse use) : use_(use) {}
  bool past_cache() const { return use_.load(std::memory_order_relaxed) == CacheUse::kNever; }
  // Calls OutputFile::put_at, and measures its pace if there are enough bytes.
  // Requires: no other thread writes `file` meanwhile; a waiting thread would spin, and the time
  // would count.  Throws: like put_at.
  void put(OutputFile& file, std::uint64_t offset, std::span<const std::byte> bytes);

 private:
  std::atomic<CacheUse> use_;
  std::mutex mutex_;
  CopyPace pace_;
};

}  // namespace fsdp::formats
