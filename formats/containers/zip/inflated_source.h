// SPDX-License-Identifier: Apache-2.0
// A deflated record read as if it were stored, without holding all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/zip/inflate_stream.h"

namespace fsdp::formats {

// The expanded content of the raw deflate stream that fills `compressed`.  Meant for reading from
// front to back: a step back starts again at the first byte.  Thread-safe.
class InflatedSource : public ByteSource {
 public:
  // `bytes`: the expanded size.  Throws: kLimitRatio if that is impossible.
  InflatedSource(std::shared_ptr<const ByteSource> compressed, std::uint64_t bytes);
  std::uint64_t size() const override { return bytes_; }
  // Throws: kTruncated if the stream holds less, kZipMismatch if it is not a deflate stream,
  // OverWork and kInterrupted like InflateStream, what reading throws.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  const std::shared_ptr<const ByteSource> compressed_;
  const std::uint64_t bytes_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<InflateStream> stream_;
};

}  // namespace fsdp::formats
