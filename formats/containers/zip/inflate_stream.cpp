// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/inflate_stream.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kInputBytes = 64U << 10U;

constexpr std::uint64_t kSkipBytes = 64U << 10U;

// Fills `out`; throws if the stream ends before.
void read_all(InflateStream& stream, std::span<std::byte> out) {
  if (stream.read(out) == out.size()) return;
  throw Error(ErrorCode::kTruncated, "deflate: the stream holds ", stream.position(),
              " bytes, more are expected");
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

struct InflateStream::State {
  explicit State(const ByteSource& source)
      : compressed(source), input(static_cast<std::size_t>(std::min(source.size(), kInputBytes))) {
    // Negative: a raw stream, without zlib's own header and checksum.
    if (::inflateInit2(&zlib, -MAX_WBITS) != Z_OK)
      throw Error(ErrorCode::kOutOfMemory, "deflate: no memory for the decoder");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { ::inflateEnd(&zlib); }

  void fill() {
    const auto bytes = std::span(input).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(input.size(), compressed.size() - at)));
    if (bytes.empty()) {
      throw Error(ErrorCode::kTruncated, "deflate: the stream of ", compressed.size(),
                  " bytes ends after ", position, " bytes");
    }
    compressed.read_at(at, bytes);
    at += bytes.size();
    zlib.next_in = reinterpret_cast<Bytef*>(bytes.data());
    zlib.avail_in = static_cast<uInt>(bytes.size());
  }

  // Produces some output, or all that the available input yields.
  void step() {
    const int status = ::inflate(&zlib, Z_NO_FLUSH);
    ended = status == Z_STREAM_END;
    if (ended || status == Z_OK) return;
    // No output, and none pending: more input is needed.
    if (status == Z_BUF_ERROR) return fill();
    throw Error(ErrorCode::kZipMismatch, "deflate: no valid stream near byte ", at - zlib.avail_in,
                ": ", zlib.msg != nullptr ? zlib.msg : "unknown reason");
  }

  const ByteSource& compressed;
  std::vector<std::byte> input;
  z_stream zlib{};
  std::uint64_t at = 0;  // of the next input
  std::uint64_t position = 0;
  bool ended = false;
};

void check_deflate_ratio(const ByteSource& compressed, std::uint64_t bytes) {
  if (bytes / kMaxDeflateRatio <= compressed.size()) return;
  throw Error(ErrorCode::kLimitRatio, "deflate: a stream of ", compressed.size(),
              " bytes cannot hold the expected ", bytes);
}

InflateStream::InflateStream(const ByteSource& compressed)
    : state_(std::make_unique<State>(compressed)) {}

InflateStream::~InflateStream() = default;

std::size_t InflateStream::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size() && !state_->ended) {
    throw_if_interrupted();
    const auto rest = out.subspan(done);
    const std::size_t wanted = std::min<std::size_t>(rest.size(), std::numeric_limits<uInt>::max());
    state_->zlib.next_out = reinterpret_cast<Bytef*>(rest.data());
    state_->zlib.avail_out = static_cast<uInt>(wanted);
    state_->step();
    const std::size_t got = wanted - state_->zlib.avail_out;
    charge_expansion(got);
    state_->position += got;
    done += got;
  }
  return done;
}

std::uint64_t InflateStream::position() const {
  return state_->position;
}

std::uint64_t InflateStream::unused() const {
  return state_->compressed.size() - state_->at + state_->zlib.avail_in;
}

InflatedSource::InflatedSource(std::shared_ptr<const ByteSource> compressed, std::uint64_t bytes)
    : compressed_(std::move(compressed)), bytes_(bytes) {
  check_deflate_ratio(*compressed_, bytes);
}

void InflatedSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    throw Error(ErrorCode::kTruncated, "deflate: ", out.size(), " bytes at byte ", offset,
                " are needed of ", bytes_);
  }
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr || offset < stream_->position())
    stream_ = std::make_unique<InflateStream>(*compressed_);
  skip_to(*stream_, offset);
  read_all(*stream_, out);
}

}  // namespace fsdp::formats
