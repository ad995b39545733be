// SPDX-License-Identifier: Apache-2.0
// Reads parts of stored files before they are requested, many at once, so that the link's bandwidth
// limits the speed and not its latency per read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

namespace fsdp::formats {

struct AheadFile;

// Makes the requests for all files of this process.  Thread-safe.
class ReadAhead {
 public:
  // The most requests under way at once.
  static constexpr unsigned kMostAtOnce = 48;
  static constexpr std::uint64_t kDefaultBudget = 128U << 20U;

  static ReadAhead& shared();
  ~ReadAhead();

  // Sets the memory for bytes that are not read yet.  Requests of a single reader may exceed it.
  void set_budget(std::uint64_t bytes);
  std::uint64_t budget() const { return budget_; }

  // Must be called before any other function for a file.
  void open(AheadFile& file);
  // Hint: these bytes will be read, in about this order, once or, if `again`, perhaps more often.
  // Parts that lie close together become one request.  Returns whether more hints are worth giving
  // now: the waiting ones fill less than the memory.
  bool expect(const std::shared_ptr<AheadFile>& file, std::uint64_t offset, std::uint64_t count,
              bool again) noexcept;
  // Fills `out`.  Requires: the range lies within the file.
  // Throws: what Store::read throws; kInterrupted.
  void read(const std::shared_ptr<AheadFile>& file, std::uint64_t offset, std::span<std::byte> out);
  // Frees the blocks of a file that is not read any more.
  void close(AheadFile& file) noexcept;

 private:
  struct Impl;
  ReadAhead();
  std::atomic<std::uint64_t> budget_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp::formats
