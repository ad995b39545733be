// SPDX-License-Identifier: Apache-2.0
// What the reading of computed tensors shares: buffers, and the checksums of the storages read.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "formats/state/model/piece_reader.h"

namespace fsdp::formats::arrays {

// Elements that are computed at a time.
inline constexpr std::size_t kComputedNumel = 32768;
// Size of one buffer: enough for that many elements of the widest dtype.
inline constexpr std::size_t kScratchBytes = kComputedNumel * 16;

// Thread-safe.
class ReadContext {
 public:
  StorageChecks& checks() { return checks_; }
  // Compares the storages that computed tensors read with their checksums; storages read in part
  // are read again.  Called once, after all reading.  Throws: kZipCrc, the errors of reading.
  void finish();

 private:
  friend class Scratch;
  using Buffer = std::unique_ptr<std::byte[]>;
  StorageChecks checks_{true};
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

// A buffer of kScratchBytes on loan from a context.  A context has as many as were needed at once:
// some for each thread, and for each computation inside another.
class Scratch {
 public:
  explicit Scratch(ReadContext& context);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  std::span<std::byte> bytes() const { return {buffer_.get(), kScratchBytes}; }

 private:
  ReadContext& context_;
  ReadContext::Buffer buffer_;
};

}  // namespace fsdp::formats::arrays
