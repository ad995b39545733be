// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/byte_source.h"

#include <algorithm>
#include <cstring>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

void check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size) {
  if (offset > size || count > size - offset) {
    throw Error(ErrorCode::kTruncated, "bytes ", offset, " to ", offset, "+", count,
                " are needed, but there are only ", size);
  }
}

}  // namespace

void ByteSource::read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t,
                          RunWindow&) const {
  read_at(offset, out);
}

std::vector<std::byte> read_bytes(const ByteSource& source, std::uint64_t offset,
                                  std::uint64_t count) {
  check_range(offset, count, source.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  source.read_at(offset, bytes);
  return bytes;
}

void check_size(const ByteSource& source, std::uint64_t most) {
  if (source.size() > most)
    throw Error(ErrorCode::kLimitSize, cat("has ", source.size(), " bytes, at most ", most));
}

std::string read_text(const ByteSource& source, std::uint64_t most) {
  check_size(source, most);
  std::string text(static_cast<std::size_t>(source.size()), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void MemorySource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), bytes_.size());
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

SourceRange::SourceRange(std::shared_ptr<const ByteSource> base, std::uint64_t offset,
                         std::uint64_t length)
    : base_(std::move(base)), offset_(offset), length_(length) {
  check_range(offset, length, base_->size());
}

void SourceRange::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), length_);
  base_->read_at(offset_ + offset, out);
}

void SourceRange::read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                           RunWindow& window) const {
  check_range(offset, out.size(), length_);
  base_->read_run(offset_ + offset, out, offset_ + end, window);
}

EndsCache::EndsCache(const ByteSource& base, std::uint64_t head_bytes, std::uint64_t tail_bytes)
    : base_(base), tail_offset_(base.size()) {
  const std::uint64_t size = base.size();
  if (size <= head_bytes + tail_bytes) {
    head_ = read_bytes(base, 0, size);
    return;
  }
  head_ = read_bytes(base, 0, head_bytes);
  tail_offset_ = size - tail_bytes;
  tail_ = read_bytes(base, tail_offset_, tail_bytes);
}

void EndsCache::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), base_.size());
  if (out.empty()) return;
  if (offset + out.size() <= head_.size()) {
    std::memcpy(out.data(), head_.data() + offset, out.size());
  } else if (offset >= tail_offset_) {
    std::memcpy(out.data(), tail_.data() + (offset - tail_offset_), out.size());
  } else {
    base_.read_at(offset, out);
  }
}

}  // namespace fsdp::formats
