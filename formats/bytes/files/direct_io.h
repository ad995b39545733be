// SPDX-License-Identifier: Apache-2.0
// Input and output past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "formats/bytes/base/huge_pages.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {

// The alignment of direct I/O, in memory and in the file, and of its sizes: the largest block size
// of disks.
inline constexpr std::uint64_t kDiskBlockBytes = 4096;

// Memory in huge pages, if the kernel has some: contiguous memory makes one request to the disk.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Requires: a multiple of 2 MiB.
  explicit AlignedBuffer(std::size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, bytes))), bytes_(bytes) {
    if (!memory_) throw std::bad_alloc();
    advise_huge(memory_.get(), bytes);
  }
  explicit operator bool() const { return memory_ != nullptr; }
  std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }

 private:
  static constexpr std::size_t kHugePageBytes = 2U << 20U;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

// Opens the file of `fd` once more, past the page cache.  Returns none (-1) unless the file system
// is known to gain by it: ext4 and XFS.  `access`: O_RDONLY or O_WRONLY.
FileDescriptor open_direct(int fd, int access);

}  // namespace fsdp::formats
