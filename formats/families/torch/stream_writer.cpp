// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/stream_writer.h"

#include <algorithm>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Bytes written at once: the checksum, computed just before, has brought them into the cache.
constexpr std::size_t kBlockBytes = 1U << 18U;

std::uint32_t write_payload(OutputStream& out, std::span<const std::byte> bytes) {
  std::uint32_t crc = 0;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(kBlockBytes, bytes.size()));
    const std::uint32_t block_crc = crc32(0, block);
    crc = crc32_combine(crc, block_crc, block.size());
    out.write(block, block_crc);
    bytes = bytes.subspan(block.size());
  }
  return crc;
}

}  // namespace

void check_tensor_bytes(const OutputStream& out, std::uint64_t wanted, std::uint64_t found) {
  if (found == wanted) return;
  throw Error(ErrorCode::kShape, cat(out.file().name(), ": a tensor of ", wanted,
                                     " bytes is to be written, but has ", found));
}

void write_archive(OutputStream& out, TorchSaveLayout& layout, const StorageBytes& bytes_of) {
  layout.write(
      [&](std::size_t number, std::uint64_t) {
        const StorageRef& storage = layout.storages()[number];
        const auto bytes = bytes_of(storage);
        check_tensor_bytes(out, storage.numel * item_bytes(storage.dtype), bytes.size());
        return write_payload(out, bytes);
      },
      [&](std::uint64_t, std::span<const std::byte> bytes) { out.write(bytes); });
}

void write_torch_file(OutputFile& file, const Value& root, const TensorBytes& bytes, CacheUse use) {
  TorchSaveLayout archive(root);
  file.reserve(archive.bytes());
  OutputStream out(file, use);
  write_archive(out, archive,
                [&](const StorageRef& storage) { return bytes(storage.tensor.value().number); });
  out.flush();
}

}  // namespace fsdp::formats
