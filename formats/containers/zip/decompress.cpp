// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/decompress.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/inflate_stream.h"

namespace fsdp::formats {
namespace {

// The sizes of the input and the output buffer, whatever the sizes of the streams.
constexpr std::size_t kBufferBytes = std::size_t{128} * 1024;

// A zstd frame may ask its reader to keep this much of its output; more is refused.
constexpr int kMaxZstdWindowLog = 27;

// Hands out `source` from its beginning in buffers.
class Input {
 public:
  explicit Input(const ByteSource& source)
      : source_(source),
        buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kBufferBytes))) {}

  // Returns the next bytes, empty at the end.  Lifetime: until the next call.
  std::span<const std::byte> next() {
    const std::uint64_t rest = source_.size() - at_;
    const auto bytes = std::span(buffer_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(rest, buffer_.size())));
    source_.read_at(at_, bytes);
    at_ += bytes.size();
    return bytes;
  }
  // Bytes handed out so far.
  std::uint64_t position() const { return at_; }

 private:
  const ByteSource& source_;
  std::vector<std::byte> buffer_;
  std::uint64_t at_ = 0;
};

// Passes bytes on and counts them.
class CountedOutput {
 public:
  CountedOutput(std::uint64_t most, const ByteSink& sink)
      : most_(most), sink_(sink), buffer_(kBufferBytes) {}

  std::span<std::byte> buffer() { return buffer_; }
  // Takes the first `count` bytes of the buffer.  Throws: kLimitRatio.
  void take(std::size_t count) {
    if (count > most_ - done_) {
      throw Error(ErrorCode::kLimitRatio, "zstd: the stream holds more than the expected ", most_,
                  " bytes");
    }
    throw_if_interrupted();
    charge_expansion(count);
    done_ += count;
    if (count != 0) sink_(std::span(buffer_).first(count));
  }
  std::uint64_t done() const { return done_; }

 private:
  std::uint64_t most_;
  const ByteSink& sink_;
  std::vector<std::byte> buffer_;
  std::uint64_t done_ = 0;
};

struct ZstdEnd {
  void operator()(ZSTD_DCtx* context) const { ::ZSTD_freeDCtx(context); }
};

}  // namespace

void inflate(const ByteSource& source, std::uint64_t expected_bytes, const ByteSink& sink) {
  check_deflate_ratio(source, expected_bytes);
  InflateStream stream(source);
  std::vector<std::byte> buffer(kBufferBytes);
  for (std::size_t count = buffer.size(); count == buffer.size();) {
    count = stream.read(buffer);
    if (stream.position() > expected_bytes) {
      throw Error(ErrorCode::kLimitRatio, "deflate: the stream holds more than the expected ",
                  expected_bytes, " bytes");
    }
    if (count != 0) sink(std::span(buffer).first(count));
  }
  if (stream.unused() != 0) {
    throw Error(ErrorCode::kZipMismatch, "deflate: the stream ends ", stream.unused(),
                " bytes early");
  }
  if (stream.position() != expected_bytes) {
    throw Error(ErrorCode::kTruncated, "deflate: the stream holds ", stream.position(),
                " bytes, expected ", expected_bytes);
  }
}

void unzstd(const ByteSource& source, std::uint64_t max_bytes, const ByteSink& sink) {
  Input input(source);
  CountedOutput output(max_bytes, sink);
  const std::unique_ptr<ZSTD_DCtx, ZstdEnd> context(::ZSTD_createDCtx());
  if (!context || ::ZSTD_isError(::ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax,
                                                          kMaxZstdWindowLog)) != 0) {
    throw Error(ErrorCode::kOutOfMemory, "zstd: no memory for the decoder");
  }
  MemoryCharge window;
  std::size_t wanted = 1;  // 0 if a frame has just ended
  bool any = false;
  for (auto bytes = input.next(); !bytes.empty(); bytes = input.next()) {
    any = true;
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    bool full = false;
    while (in.pos < in.size || full) {
      const auto buffer = output.buffer();
      ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
      wanted = ::ZSTD_decompressStream(context.get(), &out, &in);
      if (::ZSTD_isError(wanted) != 0) {
        throw Error(ErrorCode::kUnsupported, "zstd: no valid stream near byte ",
                    input.position() - in.size + in.pos, ": ", ::ZSTD_getErrorName(wanted));
      }
      window.grow_to(::ZSTD_sizeof_DCtx(context.get()));
      output.take(out.pos);
      full = out.pos == out.size && wanted != 0;
    }
  }
  if (!any || wanted != 0) {
    throw Error(ErrorCode::kTruncated, "zstd: the stream of ", source.size(),
                " bytes ends inside a frame, after ", output.done(), " decoded bytes");
  }
}

}  // namespace fsdp::formats
