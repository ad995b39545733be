// SPDX-License-Identifier: Apache-2.0
// Any bytes read as a zstd stream and as a raw deflate stream, against a limit.
#include <algorithm>
#include <cstdlib>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/containers/zip/decompress.h"
#include "formats/containers/zip/inflate_stream.h"

namespace fsdp::formats {
namespace {

// Small, so that a few bytes of input reach it.
constexpr std::uint64_t kLimit = 1 << 20;

// Counts what comes out, never more than the limit.
struct Counter {
  std::uint64_t bytes = 0;
  ByteSink sink() {
    return [this](std::span<const std::byte> piece) {
      bytes += piece.size();
      if (piece.empty() || bytes > kLimit) std::abort();
    };
  }
};

void fuzz(std::span<const std::byte> bytes) {
  const MemorySource source(bytes);
  try {
    Counter counter;
    unzstd(source, kLimit, counter.sink());
  } catch (const Error&) {
  }
  // The size is not known in advance: expect as much as came out.
  Counter first;
  try {
    inflate(source, std::min<std::uint64_t>(kLimit, bytes.size() * kMaxDeflateRatio), first.sink());
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kTruncated) return;
  }
  try {
    Counter second;
    inflate(source, first.bytes, second.sink());
    if (second.bytes != first.bytes) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
