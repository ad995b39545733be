// SPDX-License-Identifier: Apache-2.0
#include "formats/base/output_stream.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "formats/base/crc32.h"
#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

OutputStream::OutputStream(OutputFile& file, CacheUse use)
    : file_(file),
      direct_(use == CacheUse::kAlways ? FileDescriptor() : file.open_direct()),
      use_(use) {
  if (direct_.get() < 0) return;
  buffers_.resize(kBuffers);
  for (Buffer& buffer : buffers_) buffer.memory = AlignedBuffer(kBufferBytes);
}

void OutputStream::write(std::span<const std::byte> bytes, std::optional<std::uint32_t> crc) {
  if (file_.summed()) {
    crc_ = crc ? crc32_combine(crc_, *crc, bytes.size()) : crc32(crc_, bytes);
  }
  if (buffers_.empty()) {
    file_.put_at(begin_, bytes);
    begin_ += bytes.size();
    return;
  }
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kBufferBytes - filled_));
    std::memcpy(buffers_[filling_].memory.bytes().data() + filled_, part.data(), part.size());
    filled_ += part.size();
    bytes = bytes.subspan(part.size());
    if (filled_ == kBufferBytes) start_writing();
  }
}

void OutputStream::flush() {
  if (filled_ != 0) start_writing();
  for (Buffer& buffer : buffers_) {
    if (buffer.written.valid()) buffer.written.get();
  }
  file_.add_crc(0, position(), crc_);
}

void OutputStream::start_writing() {
  Buffer& full = buffers_[filling_];
  const auto bytes = full.memory.bytes().first(filled_);
  try {
    full.written =
        std::async(std::launch::async, [this, at = begin_, bytes] { write_block(at, bytes); });
  } catch (const std::system_error&) {  // no thread is to be had
    write_block(begin_, bytes);
  }
  begin_ += filled_;
  filled_ = 0;
  filling_ = (filling_ + 1) % kBuffers;
  std::future<void>& next = buffers_[filling_].written;
  if (next.valid()) next.get();
}

void OutputStream::write_block(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!write_cached(offset, bytes)) write_direct(offset, bytes);
}

// Unless that was found to be slow: says whether.
bool OutputStream::write_cached(std::uint64_t offset, std::span<const std::byte> bytes) {
  // One at a time: the kernel has a lock for that, too, but spins on it, which would count.
  const std::lock_guard lock(mutex_);
  if (use_ == CacheUse::kNever) return false;
  const double begin = thread_cpu_seconds();
  file_.put_at(offset, bytes);
  if (bytes.size() == kBufferBytes) pace_.add(bytes.size(), thread_cpu_seconds() - begin);
  if (pace_.slow()) use_ = CacheUse::kNever;
  return true;
}

// Whole blocks past the page cache, what then is left through it.
void OutputStream::write_direct(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (bytes.size() >= kDiskBlockBytes && offset % kDiskBlockBytes == 0) {
    const std::size_t wanted = bytes.size() / kDiskBlockBytes * kDiskBlockBytes;
    const ssize_t written =
        ::pwrite(direct_.get(), bytes.data(), wanted, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    // The file system had no objection when the file was opened, but has now.
    if (written < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) break;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      throw_errno(cat(file_.name(), ": writing ", wanted, " bytes at byte ", offset));
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (!bytes.empty()) file_.put_at(offset, bytes);
}

}  // namespace fsdp::formats
