// SPDX-License-Identifier: Apache-2.0
// A raw deflate stream (zip method 8), decoded piece by piece from front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "formats/bytes/base/byte_source.h"

namespace fsdp::formats {

// The most bytes that one byte of deflate can expand to.
constexpr std::uint64_t kMaxDeflateRatio = 1032;

// Throws: kLimitRatio if `compressed` cannot expand to `bytes`.
void check_deflate_ratio(const ByteSource& compressed, std::uint64_t bytes);

// Charges the output to the process's budget (formats/bytes/base/budget.h).
class InflateStream {
 public:
  // Lifetime: `compressed` outlives the stream.
  explicit InflateStream(const ByteSource& compressed);
  ~InflateStream();

  // Fills `out` with the next bytes; fewer if the stream ends.
  // Throws: kTruncated if the input ends before the stream does, kZipMismatch if it is not a
  // deflate stream, OverWork, kInterrupted, what reading throws.
  std::size_t read(std::span<std::byte> out);

  std::uint64_t position() const;  // bytes of output so far
  // Returns the bytes of `compressed` that were not used.  Once read() has returned less than
  // requested, these are the bytes after the stream.
  std::uint64_t unused() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

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
