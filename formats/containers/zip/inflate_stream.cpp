// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/inflate_stream.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kInputBytes = 64U << 10U;

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
      throw Error(ErrorCode::kTruncated, cat("deflate: the stream of ", compressed.size(),
                                             " bytes ends after ", position, " bytes"));
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
    throw Error(ErrorCode::kZipMismatch,
                cat("deflate: no valid stream near byte ", at - zlib.avail_in, ": ",
                    zlib.msg != nullptr ? zlib.msg : "unknown reason"));
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
  throw Error(ErrorCode::kLimitRatio, cat("deflate: a stream of ", compressed.size(),
                                          " bytes cannot hold the expected ", bytes));
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

}  // namespace fsdp::formats
