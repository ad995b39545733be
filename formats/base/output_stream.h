// SPDX-License-Identifier: Apache-2.0
// One writer's way to fill a file from front to back at the speed of the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <span>

#include "formats/base/atomic_output.h"
#include "formats/base/direct_io.h"
#include "formats/base/file.h"

namespace fsdp::formats {

// Appends to a file.  One that will be synced goes past the page cache where the file system is
// known to be good at that: nobody reads it soon, the kernel need not find memory for it, and
// copying it there takes longer than a fast disk takes to write it.  Then two buffers of
// kBufferBytes are held: one is filled while a thread writes the other.
class OutputStream {
 public:
  static constexpr std::size_t kBufferBytes = 2U << 20U;

  // Begins at byte 0.  `direct` false: through the page cache in any case.  Lifetime: the file
  // outlives the stream; nothing else writes what the stream writes.
  explicit OutputStream(OutputFile& file, bool direct = true);

  // Throws: kNoSpace, kIo.
  void write(std::span<const std::byte> bytes);
  // Hands the rest to the file; without it the file lacks its end.
  // Throws: kNoSpace, kIo.
  void flush();

  // Bytes written so far.
  std::uint64_t position() const { return begin_ + filled_; }
  const OutputFile& file() const { return file_; }

 private:
  void start_writing();
  void write_blocks(std::uint64_t offset, std::span<const std::byte> bytes);

  OutputFile& file_;
  FileDescriptor direct_;  // none where everything goes through the page cache
  AlignedBuffer filling_;
  AlignedBuffer writing_;
  std::uint64_t begin_ = 0;  // where in the file what is being filled begins
  std::size_t filled_ = 0;
  std::future<void> written_;  // of what is being written; last: it is waited for before all goes
};

}  // namespace fsdp::formats
