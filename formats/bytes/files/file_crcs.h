// SPDX-License-Identifier: Apache-2.0
// CRC-32s of parts of files, noted while they are read for another reason, so that the checksum of
// a whole file does not need a second pass.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/files/file.h"

namespace fsdp::formats {

// Thread-safe.
class FileCrcs {
 public:
  // Adds the checksum of the `bytes` bytes from `begin` on, as they were read.  Short parts are not
  // kept: reading them again costs less than reading around them.
  void add(const File& file, std::uint64_t begin, std::uint64_t bytes, std::uint32_t crc) {
    if (bytes < kLeastBytes) return;
    const std::lock_guard lock(mutex_);
    ledgers_[file.identity()].add(begin, bytes, crc);
  }
  // Returns the known parts of the file, in ascending order.
  std::vector<CrcLedger::Run> runs(const File& file) const {
    const std::lock_guard lock(mutex_);
    const auto found = ledgers_.find(file.identity());
    return found == ledgers_.end() ? std::vector<CrcLedger::Run>() : found->second.runs();
  }

 private:
  static constexpr std::uint64_t kLeastBytes = 64U << 10U;

  mutable std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, CrcLedger> ledgers_;
};

}  // namespace fsdp::formats
