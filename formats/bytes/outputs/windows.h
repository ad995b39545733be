// SPDX-License-Identifier: Apache-2.0
// Fills files by position at the speed of the disk, for several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "formats/bytes/files/direct_io.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/outputs/cache_use.h"
#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/write_turns.h"
#include "formats/bytes/upload/byte_runs.h"

namespace fsdp::formats {

// Writes blocks of any length to any place of several files.  Thread-safe: write.
//
// Through the page cache each file has one writer at a time, see WriteTurns.
//
// Past it (see Note [page cache or disk] in cache_use.h) blocks are gathered in windows: memory for
// kWindowBytes of a file that begin at a multiple of that size.  A full window goes to the disk
// while the next ones are filled.  A window with gaps, because others write the bytes between, is
// written when its memory is needed, as far as it is filled.
class OutputWindows {
 public:
  static constexpr std::size_t kWindowBytes = 2U << 20U;
  static constexpr std::size_t kMostWindows = 8;
  // The fewest windows, so that several threads can fill some while one is written; with less
  // memory everything goes through the page cache.
  static constexpr std::size_t kLeastWindows = 4;

  // `max_bytes`: of memory for windows.
  explicit OutputWindows(std::uint64_t max_bytes, CacheUse use = CacheUse::kWhileQuick);
  // Data that were not flushed may be missing in the files.
  ~OutputWindows();

  // Returns the bytes that the windows would use, at most `max_bytes`.
  static std::uint64_t bytes_of(std::uint64_t max_bytes);

  // `crc`: the CRC-32 of the bytes, which another thread may write later, while `what.owner` is
  // held.  An error of an earlier write may be thrown here.
  // Requires: no byte is written twice; the file outlives the last call.
  // Throws: kNoSpace, kIo.
  void write(OutputFile& file, PendingWrite what, std::uint32_t crc);
  // Writes the rest to the files; without this call they lack parts.  Requires: no other call
  // meanwhile.
  // Throws: kNoSpace, kIo.
  void flush();

 private:
  struct Target {
    WriteTurns turns;  // of the threads that write through the page cache
    bool asked = false;
    FileDescriptor direct;  // none (-1) if it was not requested or is not available
  };
  struct Window {
    AlignedBuffer memory;
    OutputFile* file = nullptr;
    Target* target = nullptr;
    std::uint64_t begin = 0;  // offset in the file
    ByteRuns runs;            // the filled parts
    unsigned fillers = 0;     // threads that copy into it
  };
  using Lock = std::unique_lock<std::mutex>;
  using Place = std::list<Window>::iterator;

  Target& target_of(OutputFile& file);
  bool goes_past_cache(OutputFile& file, Target& target);
  void fill(OutputFile& file, Target& target, std::uint64_t offset,
            std::span<const std::byte> bytes);
  Place window_at(Lock& lock, OutputFile& file, Target& target, std::uint64_t begin);
  void hand_over(Place window);
  void write_next(Lock& lock);

  std::size_t most_windows_;
  CacheChoice choice_;
  std::mutex mutex_;  // of all below
  std::unordered_map<const OutputFile*, Target> targets_;
  std::list<Window> free_;
  std::list<Window> filling_;  // the oldest first
  std::list<Window> full_;
  std::size_t windows_ = 0;  // in the lists and being written
  std::size_t writing_ = 0;
  std::exception_ptr failure_;
  bool stopped_ = false;
  std::condition_variable work_;       // for writers: there is something to write, or they stop
  std::condition_variable progress_;   // for others: a window was written or left by a filler
  std::vector<std::jthread> writers_;  // last: they use all above
};

}  // namespace fsdp::formats
