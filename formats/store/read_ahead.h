// SPDX-License-Identifier: Apache-2.0
// Reads parts of stored files before they are asked for, many at once: what follows costs what the
// width of the link allows, and not its latency once for each read.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "formats/store/store.h"

namespace fsdp::formats {

// A file that is read, and its parts that are on the way or at hand.  ReadAhead's lock guards what
// stands below `file`.
struct AheadFile {
  // A range of the file that is read by one request.
  struct Block {
    enum class State { kWaiting, kReading, kReady, kFailed, kGone };
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t order = 0;  // its place in the order of the hints, in bytes
    State state = State::kWaiting;
    bool kept = false;        // read more than once
    bool spent = false;       // read to its end
    std::uint64_t used = 0;   // bytes that were read from it, and those that nobody wants
    std::uint64_t reach = 0;  // the end of what was read from it
    std::pair<std::uint64_t, std::uint64_t> key;  // among those at hand: when it was used last
    std::shared_ptr<std::byte[]> bytes;
    std::uint64_t capacity = 0;  // of `bytes`
    std::exception_ptr failure;
    std::uint64_t size() const { return end - begin; }
  };

  AheadFile(const Store& from, std::string place, StoredFile what)
      : store(from), url(std::move(place)), file(std::move(what)) {}
  const Store& store;
  const std::string url;
  const StoredFile file;

  std::map<std::uint64_t, std::shared_ptr<Block>> blocks;  // by begin; they do not overlap
  std::uint64_t next = 0;                                  // the byte behind the last read
  std::uint64_t window = 0;      // how far reads that follow each other are read ahead of
  std::uint64_t window_end = 0;  // how far they were so far
  bool closed = false;
};

// The requests of all files of this process.  Thread-safe.
class ReadAhead {
 public:
  // Requests that are under way at once, at most.
  static constexpr unsigned kMostAtOnce = 48;
  static constexpr std::uint64_t kDefaultBudget = 128U << 20U;

  static ReadAhead& shared();
  ~ReadAhead();

  // The memory for bytes that nobody has read yet.  Requests of a single reader may go beyond.
  void set_budget(std::uint64_t bytes);
  std::uint64_t budget() const { return budget_; }

  // Hint: these bytes will be read, in about this order, once or, if `again`, perhaps more often.
  // Parts that lie close together become one request.  Returns whether more hints are worth giving
  // now: those that wait fill less than the memory.
  bool expect(const std::shared_ptr<AheadFile>& file, std::uint64_t offset, std::uint64_t count,
              bool again) noexcept;
  // Fills `out`.  Requires: the range lies within the file.
  // Throws: what Store::read throws; kInterrupted.
  void read(const std::shared_ptr<AheadFile>& file, std::uint64_t offset, std::span<std::byte> out);
  // Gives back what was read of the file.  Nobody reads it any more.
  void close(AheadFile& file) noexcept;

 private:
  struct Impl;
  ReadAhead();
  std::atomic<std::uint64_t> budget_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp::formats
