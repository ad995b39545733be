// SPDX-License-Identifier: Apache-2.0
// Fills a file from front to back at the speed of the disk, for one writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "formats/bytes/files/direct_io.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/outputs/cache_use.h"
#include "formats/bytes/outputs/file.h"

namespace fsdp::formats {

// Appends to a file.
//
// Files that are not synced, and those on file systems that are not known to gain by O_DIRECT, go
// through the cache.  Otherwise (see Note [page cache or disk] in cache_use.h) there are kBuffers
// of kBufferBytes: one is filled while threads write the others, so that the disk always has
// something to do.
class OutputStream {
 public:
  static constexpr std::size_t kBufferBytes = 2U << 20U;
  static constexpr std::size_t kBuffers = 4;

  // Begins at byte 0.  Lifetime: the file outlives the stream; nothing else writes the same bytes.
  explicit OutputStream(OutputFile& file, CacheUse use = CacheUse::kWhileQuick);

  // Throws: kNoSpace, kIo.
  // `crc`: as for OutputFile::write_at.
  void write(std::span<const std::byte> bytes, std::optional<std::uint32_t> crc = std::nullopt);
  // Writes the rest to the file; without this call the file lacks its end.
  // Throws: kNoSpace, kIo.
  void flush();

  // Returns the number of bytes written so far.
  std::uint64_t position() const { return begin_ + filled_; }
  const OutputFile& file() const { return file_; }

 private:
  struct Buffer {
    AlignedBuffer memory;
    std::future<void> written;  // last: waited for before the memory goes
  };
  void start_writing();
  void write_block(std::uint64_t offset, std::span<const std::byte> bytes);

  OutputFile& file_;
  FileDescriptor direct_;  // none if everything goes through the page cache
  CacheChoice choice_;
  std::mutex mutex_;         // guards writes through the page cache
  std::uint64_t begin_ = 0;  // the file offset of the buffer being filled
  std::size_t filled_ = 0;
  std::uint32_t crc_ = 0;    // of the bytes written so far, if the file is summed
  std::size_t filling_ = 0;  // the number of a buffer
  // Empty if everything goes through the page cache.  Last: writes in flight use all members above.
  std::vector<Buffer> buffers_;
};

}  // namespace fsdp::formats
