// SPDX-License-Identifier: Apache-2.0
#include "formats/container/inflated_source.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "formats/base/budget.h"
#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/container/decompress.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kInputBytes = 64U << 10U;
constexpr std::size_t kSkipBytes = 64U << 10U;

}  // namespace

// The stream from its first byte on.
class InflatedSource::Stream {
 public:
  explicit Stream(const ByteSource& compressed)
      : compressed_(compressed),
        input_(static_cast<std::size_t>(std::min<std::uint64_t>(compressed.size(), kInputBytes))) {
    // Negative: a raw stream, without zlib's own header and checksum.
    if (::inflateInit2(&state_, -MAX_WBITS) != Z_OK)
      throw Error(ErrorCode::kOutOfMemory, "deflate: no memory for the decoder");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { ::inflateEnd(&state_); }

  // Bytes handed out so far.
  std::uint64_t position() const { return position_; }

  void read(std::span<std::byte> out) {
    while (!out.empty()) {
      throw_if_interrupted();
      const std::size_t wanted =
          std::min<std::size_t>(out.size(), std::numeric_limits<uInt>::max());
      state_.next_out = reinterpret_cast<Bytef*>(out.data());
      state_.avail_out = static_cast<uInt>(wanted);
      step();
      const std::size_t got = wanted - state_.avail_out;
      charge_expansion(got);
      position_ += got;
      out = out.subspan(got);
    }
  }

  // Throws the bytes up to `offset` away.
  void skip_to(std::uint64_t offset) {
    std::vector<std::byte> nothing(
        static_cast<std::size_t>(std::min<std::uint64_t>(kSkipBytes, offset - position_)));
    while (position_ < offset) {
      read(std::span(nothing).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(nothing.size(), offset - position_))));
    }
  }

 private:
  // Some output, or all of what the input at hand gives.
  void step() {
    if (state_.avail_in == 0 && !ended_) fill();
    const int status = ended_ ? Z_STREAM_END : ::inflate(&state_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      if (ended_) {
        throw Error(ErrorCode::kTruncated, cat("deflate: the stream of ", compressed_.size(),
                                               " bytes holds ", position_, ", more are expected"));
      }
      ended_ = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      throw Error(ErrorCode::kZipMismatch,
                  cat("deflate: no valid stream near byte ", at_ - state_.avail_in, ": ",
                      state_.msg != nullptr ? state_.msg : "unknown reason"));
    }
  }

  void fill() {
    const auto bytes = std::span(input_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(input_.size(), compressed_.size() - at_)));
    if (bytes.empty()) {
      throw Error(ErrorCode::kTruncated, cat("deflate: the stream of ", compressed_.size(),
                                             " bytes ends after ", position_, " bytes"));
    }
    compressed_.read_at(at_, bytes);
    at_ += bytes.size();
    state_.next_in = reinterpret_cast<Bytef*>(bytes.data());
    state_.avail_in = static_cast<uInt>(bytes.size());
  }

  const ByteSource& compressed_;
  std::vector<std::byte> input_;
  z_stream state_{};
  std::uint64_t at_ = 0;  // of the next input
  std::uint64_t position_ = 0;
  bool ended_ = false;
};

InflatedSource::InflatedSource(std::shared_ptr<const ByteSource> compressed, std::uint64_t bytes)
    : compressed_(std::move(compressed)), bytes_(bytes) {
  if (bytes / kMaxDeflateRatio > compressed_->size()) {
    throw Error(ErrorCode::kLimitRatio, cat("deflate: a stream of ", compressed_->size(),
                                            " bytes cannot hold the expected ", bytes));
  }
}

InflatedSource::~InflatedSource() = default;

void InflatedSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    throw Error(ErrorCode::kTruncated,
                cat("deflate: ", out.size(), " bytes at byte ", offset, " are wanted of ", bytes_));
  }
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr || offset < stream_->position())
    stream_ = std::make_unique<Stream>(*compressed_);
  stream_->skip_to(offset);
  stream_->read(out);
}

}  // namespace fsdp::formats
