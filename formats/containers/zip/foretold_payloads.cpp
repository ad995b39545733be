// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/foretold_payloads.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace fsdp::formats {
namespace {

// PyTorch's alignment is a multiple of this.
constexpr std::uint64_t kPayloadAlignment = 64;
// The sizes of miniz's data descriptors, with fields of 4 or of 8 bytes.  At most one of them is
// consistent with an aligned payload before the descriptor.
constexpr std::uint64_t kNarrowDescriptor = 16;
constexpr std::uint64_t kWideDescriptor = 24;
// An extra field without its data.
constexpr std::uint64_t kExtraBytes = 4;
constexpr std::uint64_t kMostExtraBytes = 0xFFFF;

bool has_marks_of_torch(const ZipEntry& entry, const zip::CentralHeader& central,
                        bool has_other_extra) {
  const std::uint16_t flags =
      entry.uncompressed_bytes == 0 ? zip::kFlagUtf8 : zip::kFlagUtf8 | zip::kFlagDescriptor;
  return !entry.deflated && !has_other_extra && central.version_made_by == 0 &&
         central.common.version_needed == 0 && central.common.flags == flags;
}

// Returns the offset of the payload of `entry`.  `next`: where the next header or the directory
// begins.
std::optional<std::uint64_t> payload_before(std::uint64_t next, const ZipEntry& entry) {
  const std::uint64_t header = entry.header_offset + zip::LocalHeader::kBytes + entry.name.size();
  const auto payload = [&](std::uint64_t descriptor) -> std::optional<std::uint64_t> {
    const std::uint64_t behind = entry.compressed_bytes + descriptor;
    if (next < behind) return std::nullopt;
    const std::uint64_t at = next - behind;
    const bool fits = at >= header + kExtraBytes && at - header <= kMostExtraBytes;
    return fits && at % kPayloadAlignment == 0 ? std::optional(at) : std::nullopt;
  };
  if (entry.compressed_bytes == 0) return payload(0);
  const auto narrow = payload(kNarrowDescriptor);
  return narrow ? narrow : payload(kWideDescriptor);
}

}  // namespace

bool foretell_payloads(ZipDirectory& directory) {
  std::vector<std::size_t> order(directory.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return directory.entries[a].header_offset < directory.entries[b].header_offset;
  });
  std::uint64_t next = directory.offset;
  for (std::size_t at = order.size(); at-- > 0;) {
    const std::size_t i = order[at];
    ZipEntry& entry = directory.entries[i];
    if (!has_marks_of_torch(entry, directory.headers[i], directory.has_other_extra[i]))
      return false;
    const auto payload = payload_before(next, entry);
    if (!payload) return false;
    entry.data_offset = *payload;
    next = entry.header_offset;
  }
  return next == 0;
}

}  // namespace fsdp::formats
