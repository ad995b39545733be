// SPDX-License-Identifier: Apache-2.0
#include "formats/container/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "formats/base/budget.h"
#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

// Bytes held of input and of output, whatever the sizes of the streams.
constexpr std::size_t kBufferBytes = 256 * 1024;

// A zstd frame may ask its reader to keep this much of what it wrote; more is refused.
constexpr int kMaxZstdWindowLog = 27;

// Hands out `source` from its beginning in buffers.
class Input {
 public:
  explicit Input(const ByteSource& source)
      : source_(source),
        buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kBufferBytes))) {}

  // The next bytes, empty at the end.  Lifetime: until the next call.
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
class Output {
 public:
  Output(std::string_view format, std::uint64_t most, const ByteSink& sink)
      : format_(format), most_(most), sink_(sink), buffer_(kBufferBytes) {}

  std::span<std::byte> buffer() { return buffer_; }
  // Takes the first `count` bytes of the buffer.  Throws: kLimitRatio.
  void take(std::size_t count) {
    if (count > most_ - done_) {
      throw Error(ErrorCode::kLimitRatio,
                  cat(format_, ": the stream holds more than the expected ", most_, " bytes"));
    }
    throw_if_interrupted();
    charge_expansion(count);
    done_ += count;
    if (count != 0) sink_(std::span(buffer_).first(count));
  }
  std::uint64_t done() const { return done_; }

 private:
  std::string_view format_;
  std::uint64_t most_;
  const ByteSink& sink_;
  std::vector<std::byte> buffer_;
  std::uint64_t done_ = 0;
};

struct InflateEnd {
  void operator()(z_stream* stream) const {
    ::inflateEnd(stream);
    delete stream;
  }
};
using InflateStream = std::unique_ptr<z_stream, InflateEnd>;

InflateStream start_inflate() {
  InflateStream stream(new z_stream{});
  // Negative: a raw stream, without zlib's own header and checksum.
  if (::inflateInit2(stream.get(), -MAX_WBITS) != Z_OK) {
    throw Error(ErrorCode::kOutOfMemory, "deflate: no memory for the decoder");
  }
  return stream;
}

struct ZstdEnd {
  void operator()(ZSTD_DCtx* context) const { ::ZSTD_freeDCtx(context); }
};

}  // namespace

void inflate(const ByteSource& source, std::uint64_t expected_bytes, const ByteSink& sink) {
  if (expected_bytes / kMaxDeflateRatio > source.size()) {
    throw Error(ErrorCode::kLimitRatio, cat("deflate: a stream of ", source.size(),
                                            " bytes cannot hold the expected ", expected_bytes));
  }
  Input input(source);
  Output output("deflate", expected_bytes, sink);
  const InflateStream stream = start_inflate();
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    if (stream->avail_in == 0) {
      const auto bytes = input.next();
      if (bytes.empty()) {
        throw Error(ErrorCode::kTruncated,
                    cat("deflate: the stream of ", source.size(), " bytes ends after ",
                        output.done(), " of ", expected_bytes, " expected bytes"));
      }
      // zlib reads from it, but its interface predates const.
      stream->next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));
      stream->avail_in = static_cast<uInt>(bytes.size());
    }
    do {
      const auto buffer = output.buffer();
      stream->next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream->avail_out = static_cast<uInt>(buffer.size());
      status = ::inflate(stream.get(), Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        throw Error(ErrorCode::kZipMismatch,
                    cat("deflate: no valid stream near byte ", input.position() - stream->avail_in,
                        ": ", stream->msg != nullptr ? stream->msg : "unknown reason"));
      }
      output.take(buffer.size() - stream->avail_out);
      // A full buffer may mean that more output waits in the decoder.
    } while (status == Z_OK && stream->avail_out == 0);
  }
  const std::uint64_t rest = source.size() - (input.position() - stream->avail_in);
  if (rest != 0) {
    throw Error(ErrorCode::kZipMismatch, cat("deflate: the stream ends ", rest, " bytes early"));
  }
  if (output.done() != expected_bytes) {
    throw Error(ErrorCode::kTruncated, cat("deflate: the stream holds ", output.done(),
                                           " bytes, expected ", expected_bytes));
  }
}

void unzstd(const ByteSource& source, std::uint64_t max_bytes, const ByteSink& sink) {
  Input input(source);
  Output output("zstd", max_bytes, sink);
  const std::unique_ptr<ZSTD_DCtx, ZstdEnd> context(::ZSTD_createDCtx());
  if (!context || ::ZSTD_isError(::ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax,
                                                          kMaxZstdWindowLog)) != 0) {
    throw Error(ErrorCode::kOutOfMemory, "zstd: no memory for the decoder");
  }
  MemoryCharge window;
  std::size_t wanted = 1;  // 0 where a frame has just ended
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
        throw Error(ErrorCode::kUnsupported,
                    cat("zstd: no valid stream near byte ", input.position() - in.size + in.pos,
                        ": ", ::ZSTD_getErrorName(wanted)));
      }
      window.grow_to(::ZSTD_sizeof_DCtx(context.get()));
      output.take(out.pos);
      full = out.pos == out.size && wanted != 0;
    }
  }
  if (!any || wanted != 0) {
    throw Error(ErrorCode::kTruncated,
                cat("zstd: the stream of ", source.size(), " bytes ends inside a frame, after ",
                    output.done(), " decoded bytes"));
  }
}

}  // namespace fsdp::formats
