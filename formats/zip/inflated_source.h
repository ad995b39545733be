// SPDX-License-Identifier: Apache-2.0
// A deflated record read as if it were stored, without ever holding it whole.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "formats/base/byte_source.h"
#include "formats/zip/inflate_stream.h"

namespace fsdp::formats {

// What the raw deflate stream that fills `compressed` stands for.  Made for readers that go from
// front to back: a step back begins anew at the first byte.  Thread-safe.
class InflatedSource : public ByteSource {
 public:
  // `bytes`: what comes out.  Throws: kLimitRatio where so much cannot.
  InflatedSource(std::shared_ptr<const ByteSource> compressed, std::uint64_t bytes);
  std::uint64_t size() const override { return bytes_; }
  // Throws: kTruncated where the stream holds less, kZipMismatch where it is none, OverWork and
  // kInterrupted as InflateStream, what reading throws.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  const std::shared_ptr<const ByteSource> compressed_;
  const std::uint64_t bytes_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<InflateStream> stream_;
};

}  // namespace fsdp::formats
