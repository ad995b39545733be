// SPDX-License-Identifier: Apache-2.0
#include "formats/model/crc_ledger.h"

#include <algorithm>

#include "formats/base/crc32.h"

namespace fsdp::formats {

void CrcLedger::add(std::uint64_t begin, std::uint64_t bytes, std::uint32_t crc) {
  if (bytes != 0) parts_.push_back({begin, bytes, crc});
}

std::optional<std::uint32_t> CrcLedger::total(std::uint64_t total) const {
  std::vector<Part> parts = parts_;
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  std::uint64_t end = 0;
  std::uint32_t crc = 0;
  const Part* last = nullptr;
  for (const Part& part : parts) {
    if (last != nullptr && part.begin == last->begin && part.bytes == last->bytes) continue;
    if (part.begin != end) return std::nullopt;
    crc = crc32_combine(crc, part.crc, part.bytes);
    end += part.bytes;
    last = &part;
  }
  if (end != total) return std::nullopt;
  return crc;
}

}  // namespace fsdp::formats
