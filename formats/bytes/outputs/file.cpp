// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/direct_io.h"

namespace fsdp::formats {
namespace {

// Writeback of written data starts in portions of this size: large enough for the disk to stream,
// small enough that little is left when the final fsync begins.
constexpr std::uint64_t kWritebackBytes = 32U << 20U;
// Bytes that were written without a known checksum are read in portions of this size.
constexpr std::uint64_t kReadBackBytes = 1U << 20U;

}  // namespace

int OutputFile::take_space(off_t bytes) {
  int rc = 0;
  // Not posix_fallocate, which writes zeros itself if the file system cannot reserve.
  if (bytes != 0) {
    do {
      rc = ::fallocate(fd_.get(), 0, 0, bytes);
    } while (rc != 0 && errno == EINTR);
  }
  if (rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS) rc = ::ftruncate(fd_.get(), bytes);
  return rc;
}

void OutputFile::reserve(std::uint64_t bytes) {
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) {
    throw Error(ErrorCode::kNoSpace, name_, ": ", bytes,
                " bytes are needed, more than any file can hold");
  }
  if (take_space(static_cast<off_t>(bytes)) == 0) return;
  const int number = errno;
  std::string what = cat(name_, ": ", bytes, " bytes (", human_bytes(bytes), ") are needed");
  struct statvfs info {};
  if (::fstatvfs(fd_.get(), &info) == 0) {
    const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
    what += cat(", ", free, " bytes (", human_bytes(free), ") are free");
  }
  errno = number;
  throw_errno(what);
}

void OutputFile::wrote(std::uint64_t, std::uint64_t bytes, bool) {
  if (!synced_ || since_writeback_.fetch_add(bytes) + bytes < kWritebackBytes) return;
  since_writeback_ = 0;
  // Only starts writeback and does not wait; fsync reports failures.
  (void)::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes,
                          std::optional<std::uint32_t> crc) {
  put(offset, bytes, true);
  if (summed_) add_crc(offset, bytes.size(), crc ? *crc : crc32(0, bytes));
}

void OutputFile::add_crc(std::uint64_t offset, std::uint64_t bytes, std::uint32_t crc) {
  if (!summed_) return;
  const std::lock_guard lock(mutex_);
  written_.add(offset, bytes, crc);
}

void OutputFile::put_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  put(offset, bytes, false);
}

void OutputFile::put(std::uint64_t offset, std::span<const std::byte> bytes, bool kept) {
  if (bytes.size() > static_cast<std::uint64_t>(INT64_MAX) ||
      offset > static_cast<std::uint64_t>(INT64_MAX) - bytes.size()) {
    throw Error(ErrorCode::kNoSpace, name_, ": ", bytes.size(), " bytes at byte ", offset,
                " are beyond what any file can hold");
  }
  const std::uint64_t begin = offset;
  const std::uint64_t count = bytes.size();
  const int fd = descriptor();
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      throw_errno(cat(name_, ": writing ", bytes.size(), " bytes at byte ", offset));
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  wrote(begin, count, kept);
}

void OutputFile::put_direct(const FileDescriptor& direct, std::uint64_t offset,
                            std::span<const std::byte> bytes) {
  const std::uint64_t behind = offset % kDiskBlockBytes;
  if (behind != 0) {
    const auto head = bytes.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), kDiskBlockBytes - behind)));
    put_at(offset, head);
    offset += head.size();
    bytes = bytes.subspan(head.size());
  }
  while (bytes.size() >= kDiskBlockBytes && offset % kDiskBlockBytes == 0) {
    const std::size_t wanted = bytes.size() / kDiskBlockBytes * kDiskBlockBytes;
    const ssize_t written =
        ::pwrite(direct.get(), bytes.data(), wanted, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    // The file system accepted O_DIRECT when the file was opened, but not now.
    if (written < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) break;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      throw_errno(cat(name_, ": writing ", wanted, " bytes at byte ", offset));
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (!bytes.empty()) put_at(offset, bytes);
}

FileDescriptor OutputFile::open_direct() {
  return synced_ ? formats::open_direct(descriptor(), O_WRONLY) : FileDescriptor();
}

std::uint64_t OutputFile::stripe_bytes() const {
  struct stat info {};
  if (fd_.get() < 0 || ::fstat(fd_.get(), &info) != 0 || info.st_blksize < 0) return 0;
  return static_cast<std::uint64_t>(info.st_blksize);
}

void OutputFile::sync() {
  if (fd_.get() < 0 || ::fsync(fd_.get()) == 0) return;
  failed_ = true;
  throw_errno(name_ + ": fsync");
}

void OutputFile::finish(bool sync) {
  if (failed_)
    throw Error(ErrorCode::kIo,
                name_ + ": could not be finished before, and cannot be finished now");
  if (fd_.get() < 0) return;
  failed_ = true;
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno(name_);
  bytes_ = static_cast<std::uint64_t>(info.st_size);
  if (summed_) sum_up();
  close(std::move(fd_), sync);
  failed_ = false;
}

void OutputFile::close(FileDescriptor fd, bool sync) {
  if (sync && ::fsync(fd.get()) != 0) throw_errno(name_ + ": fsync");
  // Linux closes the descriptor whatever close returns, EINTR included.
  if (::close(fd.release()) != 0 && errno != EINTR) throw_errno(name_ + ": close");
}

std::uint32_t OutputFile::read_crc(std::uint64_t begin, std::uint64_t end) const {
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, kReadBackBytes)));
  std::uint32_t crc = 0;
  while (begin < end) {
    const std::size_t wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, buffer.size()));
    const ssize_t got = ::pread(fd_.get(), buffer.data(), wanted, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got == 0) errno = EIO;
      throw_errno(cat(name_, ": reading back ", wanted, " bytes at byte ", begin));
    }
    crc = crc32(crc, std::span<const std::byte>(buffer).first(static_cast<std::size_t>(got)));
    begin += static_cast<std::uint64_t>(got);
  }
  return crc;
}

void OutputFile::sum_up() {
  std::uint64_t at = 0;
  crc_ = 0;
  for (const CrcLedger::Run& run : written_.runs()) {
    // Written twice: the file holds the later bytes, and it is not known which those are.
    if (run.begin < at || run.begin + run.bytes > bytes_) {
      crc_ = read_crc(0, bytes_);
      return;
    }
    if (run.begin != at) crc_ = crc32_combine(crc_, read_crc(at, run.begin), run.begin - at);
    crc_ = crc32_combine(crc_, run.crc, run.bytes);
    at = run.begin + run.bytes;
  }
  if (at != bytes_) crc_ = crc32_combine(crc_, read_crc(at, bytes_), bytes_ - at);
}

}  // namespace fsdp::formats
