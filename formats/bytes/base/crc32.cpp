// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/crc32.h"

#include <zlib.h>

#include <isa-l/crc.h>

namespace fsdp::formats {

std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) noexcept {
  // isa-l folds with carry-less multiplication, several times as fast as zlib's tables.
  return crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()),
                         bytes.size());
}

std::uint32_t crc32_combine(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes) noexcept {
  return static_cast<std::uint32_t>(::crc32_combine64(a, b, static_cast<z_off64_t>(b_bytes)));
}

}  // namespace fsdp::formats
