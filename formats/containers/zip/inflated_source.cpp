// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/inflated_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/inflate_stream.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kSkipBytes = 64U << 10U;

// Fills `out`; throws if the stream ends before.
void read_all(InflateStream& stream, std::span<std::byte> out) {
  if (stream.read(out) == out.size()) return;
  throw Error(ErrorCode::kTruncated,
              cat("deflate: the stream holds ", stream.position(), " bytes, more are expected"));
}

// Skips the bytes up to `offset`.
void skip_to(InflateStream& stream, std::uint64_t offset) {
  std::vector<std::byte> nothing(
      static_cast<std::size_t>(std::min(kSkipBytes, offset - stream.position())));
  while (stream.position() < offset) {
    const auto count = std::min<std::uint64_t>(nothing.size(), offset - stream.position());
    read_all(stream, std::span(nothing).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace

InflatedSource::InflatedSource(std::shared_ptr<const ByteSource> compressed, std::uint64_t bytes)
    : compressed_(std::move(compressed)), bytes_(bytes) {
  check_deflate_ratio(*compressed_, bytes);
}

void InflatedSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    throw Error(ErrorCode::kTruncated,
                cat("deflate: ", out.size(), " bytes at byte ", offset, " are needed of ", bytes_));
  }
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr || offset < stream_->position())
    stream_ = std::make_unique<InflateStream>(*compressed_);
  skip_to(*stream_, offset);
  read_all(*stream_, out);
}

}  // namespace fsdp::formats
