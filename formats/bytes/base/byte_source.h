// SPDX-License-Identifier: Apache-2.0
// Bytes that are read by position: a file, a part of one, or memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

class RunWindow;

// Thread-safe: `read_at` may be called by several threads at once.
class ByteSource : public Interface {
 public:
  virtual std::uint64_t size() const = 0;
  // Fills `out` from byte `offset` on.  Throws: kTruncated if the source ends before that, kIo.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
  // Does the same for a caller that reads all bytes up to `end` in order, as the only process that
  // does.  `window` belongs to the caller and may keep some of the bytes that follow.
  virtual void read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                        RunWindow& window) const;
};

// Returns `count` bytes from `offset` on.  Checks the range against the size before it allocates
// anything.  Throws: kTruncated, kIo.
std::vector<std::byte> read_bytes(const ByteSource& source, std::uint64_t offset,
                                  std::uint64_t count);

// Reads `count` bytes from `offset` on through `buffer`: calls `use` with the place behind `offset`
// of each part, and the part.  Throws: what reading and `use` throw.
template <typename Use>
void read_parts(const ByteSource& source, std::uint64_t offset, std::uint64_t count,
                std::span<std::byte> buffer, const Use& use) {
  for (std::uint64_t at = 0; at < count; at += buffer.size()) {
    const auto part = buffer.first(std::min<std::uint64_t>(buffer.size(), count - at));
    source.read_at(offset + at, part);
    use(at, std::span<const std::byte>(part));
  }
}

// Throws: kLimitSize if the source has more than `most` bytes.
void check_size(const ByteSource& source, std::uint64_t most);
// Returns all of the bytes.  Throws: kLimitSize if there are more than `most`; kIo.
std::string read_text(const ByteSource& source, std::uint64_t most);

// Bytes in memory.  Lifetime: the bytes outlive the source.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
};

// `length` bytes of `base` from `offset` on, seen as a source of its own.
class SourceRange : public ByteSource {
 public:
  // Requires: the range lies inside `base` (checked: kTruncated).
  SourceRange(std::shared_ptr<const ByteSource> base, std::uint64_t offset, std::uint64_t length);
  std::uint64_t size() const override { return length_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  void read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                RunWindow& window) const override;

 private:
  std::shared_ptr<const ByteSource> base_;
  std::uint64_t offset_;
  std::uint64_t length_;
};

// Keeps the first and the last bytes of `base` in memory, so that the headers of a small archive
// cost two reads.  Lifetime: `base` outlives the cache.
class EndsCache : public ByteSource {
 public:
  EndsCache(const ByteSource& base, std::uint64_t head_bytes, std::uint64_t tail_bytes);
  std::uint64_t size() const override { return base_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  const ByteSource& base_;
  std::vector<std::byte> head_;
  std::vector<std::byte> tail_;
  std::uint64_t tail_offset_;
};

}  // namespace fsdp::formats
