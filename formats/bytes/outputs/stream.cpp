// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/stream.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "formats/bytes/base/crc32.h"

namespace fsdp::formats {

OutputStream::OutputStream(OutputFile& file, CacheUse use)
    : file_(file),
      direct_(use == CacheUse::kAlways ? FileDescriptor() : file.open_direct()),
      choice_(use) {
  if (direct_.get() < 0) return;
  buffers_.resize(kBuffers);
  for (Buffer& buffer : buffers_) buffer.memory = AlignedBuffer(kBufferBytes);
}

void OutputStream::write(std::span<const std::byte> bytes, std::optional<std::uint32_t> crc) {
  if (file_.summed()) crc_ = crc ? crc32_combine(crc_, *crc, bytes.size()) : crc32(crc_, bytes);
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
  } catch (const std::system_error&) {  // no thread is available
    write_block(begin_, bytes);
  }
  begin_ += filled_;
  filled_ = 0;
  filling_ = (filling_ + 1) % kBuffers;
  std::future<void>& next = buffers_[filling_].written;
  if (next.valid()) next.get();
}

void OutputStream::write_block(std::uint64_t offset, std::span<const std::byte> bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (!choice_.past_cache()) {
      choice_.put(file_, offset, bytes);
      return;
    }
  }
  file_.put_direct(direct_, offset, bytes);
}

}  // namespace fsdp::formats
