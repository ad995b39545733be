// SPDX-License-Identifier: Apache-2.0
// A raw deflate stream (zip method 8), decoded piece by piece from front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "formats/base/byte_source.h"

namespace fsdp::formats {

// Bytes that one byte of deflate can stand for at most.
constexpr std::uint64_t kMaxDeflateRatio = 1032;

// Throws: kLimitRatio where `bytes` cannot come out of so much.
void check_deflate_ratio(const ByteSource& compressed, std::uint64_t bytes);

// Charges what comes out to the process's budget (formats/base/budget.h).
class InflateStream {
 public:
  // Lifetime: of `compressed`, as long as this.
  explicit InflateStream(const ByteSource& compressed);
  ~InflateStream();
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  // Fills `out` with what comes next; less than that where the stream ends.
  // Throws: kTruncated where the bytes end before the stream does, kZipMismatch where they are no
  // deflate stream, OverWork, kInterrupted, what reading throws.
  std::size_t read(std::span<std::byte> out);

  std::uint64_t position() const;  // bytes that came out so far
  // Bytes of `compressed` that were not used; once read() gave less than was asked for, those
  // behind the stream.
  std::uint64_t unused() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::formats
