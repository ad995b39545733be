// SPDX-License-Identifier: Apache-2.0
// Any bytes as the message of the confined process, read against the same bytes as the file: chunks
// are decoded and compared with their checksums. libhdf5 itself is not fuzzed: it is confined
// because it may fail.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/families/hdf5/description.h"
#include "formats/families/hdf5/filters.h"

namespace fsdp::formats::hdf5 {
namespace {

constexpr std::uint64_t kMaxChunkBytes = 1U << 16U;

void undo_all(const Dataset& dataset, const ByteSource& file) {
  if (dataset.storage != Dataset::Storage::kChunked || dataset.chunk_bytes() > kMaxChunkBytes)
    return;
  for (const StoredChunk& chunk : dataset.chunks) {
    if (chunk.bytes == 0) continue;
    try {
      if (undo_filters(dataset, chunk, file).size() != dataset.chunk_bytes()) std::abort();
    } catch (const Error&) {
    }
  }
  const auto runs = dataset.numel() == 0 ? std::nullopt : runs_of(dataset);
  if (!runs) return;
  // The runs tile the dense elements.
  std::uint64_t at = 0;
  for (std::size_t c = 0; c < dataset.chunks.size(); ++c) {
    if (runs->begin(c) != at || runs->chunk(at) != c) std::abort();
    at += runs->bytes(c);
  }
  if (at != dataset.bytes()) std::abort();
}

// The sum of parts is the sum of the whole.
void check_parts(std::span<const std::byte> bytes) {
  const std::size_t step = bytes.empty() ? 1 : static_cast<std::size_t>(bytes[0]) + 1;
  Fletcher32 sum(bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += step)
    sum.add(at, bytes.subspan(at, std::min(step, bytes.size() - at)));
  if (sum.value() != fletcher32(bytes)) std::abort();
}

void fuzz(std::span<const std::byte> bytes) {
  check_parts(bytes);
  const MemorySource file(bytes);
  try {
    const Description description = decode(bytes, bytes.size());
    for (const Dataset& dataset : description.datasets) undo_all(dataset, file);
    const std::string again = encode(description);
    if (again.size() != bytes.size() ||
        !std::equal(again.begin(), again.end(), reinterpret_cast<const char*>(bytes.data()))) {
      // Values after flags that say there are none are dropped; the second time everything is kept.
      const auto second = decode(std::as_bytes(std::span(again)), bytes.size());
      if (encode(second) != again) std::abort();
    }
    structure_extents(data_extents(description.datasets), bytes.size());
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats::hdf5

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::hdf5::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
