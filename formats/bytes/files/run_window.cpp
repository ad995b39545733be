// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/run_window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Shorter runs are left to the kernel, which reads ahead over the gaps between them.
constexpr std::uint64_t kMinBytes = 1U << 20U;

constexpr std::uint64_t block_floor(std::uint64_t at) {
  return at / kDiskBlockBytes * kDiskBlockBytes;
}

// Returns whether most of a range is in the page cache; true if that is unknown.
bool in_page_cache(const File& file, std::uint64_t begin, std::uint64_t end) {
  void* const map =
      ::mmap(nullptr, end - begin, PROT_READ, MAP_SHARED, file.fd(), static_cast<off_t>(begin));
  if (map == MAP_FAILED) return true;
  // The mapping is only queried, never touched: a file that shrinks meanwhile does no harm.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  const bool known = ::mincore(map, end - begin, pages.data()) == 0;
  ::munmap(map, end - begin);
  const auto present =
      std::ranges::count_if(pages, [](unsigned char state) { return (state & 1U) != 0; });
  return !known || 2 * static_cast<std::uint64_t>(present) >= pages.size();
}

}  // namespace

bool RunWindow::covers(const File& file, std::uint64_t offset) const {
  return file_ == file.number() && offset >= begin_ && offset < end_;
}

void RunWindow::open(const File& file) {
  if (file_ == file.number()) return;
  direct_ = open_direct(file.fd(), O_RDONLY);
  file_ = file.number();
  begin_ = end_ = 0;
}

void RunWindow::move_to(const File& file, std::uint64_t offset, std::uint64_t end) {
  open(file);
  begin_ = block_floor(offset);
  end_ = std::min(end, begin_ + kBytes);
  kind_ = Kind::kCached;
  if (direct_.get() < 0 || end_ - offset < kMinBytes || in_page_cache(file, begin_, end_)) return;
  if (!buffer_) buffer_ = AlignedBuffer(kBytes);
  std::uint64_t at = begin_;
  while (at < end_) {
    // Reads whole blocks; the last may go beyond the end of the run, and of the file.
    const std::uint64_t wanted =
        (end_ - at + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes;
    const ssize_t got = ::pread(direct_.get(), buffer_.bytes().data() + (at - begin_), wanted,
                                static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    at += static_cast<std::uint64_t>(std::max<ssize_t>(got, 0));
    // Ordinary reads find and report any error.
    if (got < 0) direct_.reset();
    if (got <= 0 || (at < end_ && at % kDiskBlockBytes != 0)) break;
  }
  end_ = std::min(at, end_);
  if (end_ > offset) kind_ = Kind::kHeld;
}

void RunWindow::read(const File& file, std::uint64_t offset, std::span<std::byte> out,
                     std::uint64_t end) {
  while (!out.empty()) {
    if (!covers(file, offset)) move_to(file, offset, std::max(end, offset + out.size()));
    const bool held = kind_ == Kind::kHeld;
    const auto part =
        held || end_ > offset ? out.first(std::min<std::uint64_t>(out.size(), end_ - offset)) : out;
    if (held) {
      std::memcpy(part.data(), buffer_.bytes().data() + (offset - begin_), part.size());
    } else {
      file.read_at(offset, part);
    }
    offset += part.size();
    out = out.subspan(part.size());
  }
}

}  // namespace fsdp::formats
