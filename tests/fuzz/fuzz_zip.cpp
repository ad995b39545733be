// SPDX-License-Identifier: Apache-2.0
// Any bytes read as a zip archive: its directory, then the bytes of each entry; straight,
// through EndsCache, and with a new directory.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/containers/zip/cut_archive.h"
#include "formats/containers/zip/decompress.h"
#include "formats/containers/zip/reader.h"

namespace fsdp::formats {
namespace {

// Checks what ZipReader promises about an entry; its users rely on it.
void require(bool holds) {
  if (!holds) std::abort();
}

void read_entry(const std::shared_ptr<const ByteSource>& source, const ZipEntry& entry) {
  require(entry.data_offset <= source->size());
  require(entry.compressed_bytes <= source->size() - entry.data_offset);
  if (!entry.deflated) {
    require(entry.uncompressed_bytes == entry.compressed_bytes);
    crc32(0, read_bytes(*source, entry.data_offset, entry.compressed_bytes));
    return;
  }
  std::uint64_t inflated = 0;
  const SourceRange range(source, entry.data_offset, entry.compressed_bytes);
  try {
    inflate(range, entry.uncompressed_bytes, [&](std::span<const std::byte> bytes) {
      inflated += bytes.size();
      require(inflated <= entry.uncompressed_bytes);
    });
    require(inflated == entry.uncompressed_bytes);
  } catch (const Error&) {
  }
}

void read_archive(const std::shared_ptr<const ByteSource>& source) {
  const ZipReader reader(*source);
  for (const ZipEntry& entry : reader.entries()) {
    require(reader.find(entry.name) == &entry);
    read_entry(source, entry);
  }
}

void fuzz(std::span<const std::byte> bytes) {
  const auto memory = std::make_shared<MemorySource>(bytes);
  try {
    read_archive(with_new_directory(*memory));
  } catch (const Error&) {
  }
  try {
    read_archive(memory);
  } catch (const Error&) {
    return;
  }
  // Readable entries must be readable through a cache too.
  read_archive(std::make_shared<EndsCache>(*memory, 64, 128));
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
