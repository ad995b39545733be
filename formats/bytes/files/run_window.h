// SPDX-License-Identifier: Apache-2.0
// Reads long runs of a file's bytes, each once, past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/bytes/files/direct_io.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {

// A part of one file that was read ahead.  Cached bytes are read from the page cache.  Other bytes
// are read past it if the file system is known to gain by that, in blocks far larger than those
// requested: bytes that are not read again need no room in the cache.
class RunWindow {
 public:
  // Runs up to this length are one request to the disk, wherever they begin: long enough for its
  // full speed, short enough to stay in the processor's cache.
  static constexpr std::uint64_t kRunBytes = 4U << 20U;

  // Fills `out` from byte `offset` of `file` on.  Requires: all bytes up to `end` will be
  // requested, in order.
  // Throws: the errors of File::read_at.
  void read(const File& file, std::uint64_t offset, std::span<std::byte> out, std::uint64_t end);

 private:
  // Size of the buffer, in huge pages: a run, extended to whole disk blocks at both ends.
  static constexpr std::size_t kBytes = kRunBytes + (2U << 20U);
  enum class Kind { kHeld, kCached };
  bool covers(const File& file, std::uint64_t offset) const;
  void move_to(const File& file, std::uint64_t offset, std::uint64_t end);
  void open(const File& file);

  AlignedBuffer buffer_;
  FileDescriptor direct_;  // of file `file_`; none if it is read through the page cache
  std::uint64_t file_ = 0;
  // The bytes [begin_, end_) of the file are in the buffer, or are better read through the page
  // cache.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  Kind kind_ = Kind::kCached;
};

}  // namespace fsdp::formats
