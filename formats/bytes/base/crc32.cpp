// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/crc32.h"

#include <zlib.h>

#include <algorithm>

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

void CrcLedger::add(std::uint64_t begin, std::uint64_t bytes, std::uint32_t crc) {
  if (bytes != 0) parts_.push_back({begin, bytes, crc});
}

std::vector<CrcLedger::Run> CrcLedger::runs() const {
  std::vector<Run> parts = parts_;
  std::ranges::sort(parts, {}, &Run::begin);
  std::vector<Run> runs;
  const Run* last = nullptr;
  for (const Run& part : parts) {
    if (last != nullptr && part.begin == last->begin && part.bytes == last->bytes) continue;
    last = &part;
    if (!runs.empty() && runs.back().begin + runs.back().bytes == part.begin) {
      runs.back().crc = crc32_combine(runs.back().crc, part.crc, part.bytes);
      runs.back().bytes += part.bytes;
    } else {
      runs.push_back(part);
    }
  }
  return runs;
}

std::optional<std::uint32_t> CrcLedger::total(std::uint64_t total) const {
  const std::vector<Run> joined = runs();
  if (joined.empty()) return total == 0 ? std::optional<std::uint32_t>(0) : std::nullopt;
  if (joined.size() != 1 || joined[0].begin != 0 || joined[0].bytes != total) return std::nullopt;
  return joined[0].crc;
}

}  // namespace fsdp::formats
