// SPDX-License-Identifier: Apache-2.0
// Reads parts of stored files before they are asked for, many at once: what follows costs what the
// width of the link allows, and not its latency once for each read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "formats/bytes/store/ahead_file.h"

namespace fsdp::formats {

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

  // Called before anything else of a file.
  void open(AheadFile& file);
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
