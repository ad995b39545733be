// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/records.h"

#include <cassert>
#include <type_traits>

#include "formats/bytes/base/byte_reader.h"

namespace fsdp::formats::zip {

std::optional<DataDescriptor> decode_descriptor(std::span<const std::byte> bytes) {
  const bool is_signed = bytes.size() == 16 || bytes.size() == 24;
  if (is_signed) {
    if (load_u32(bytes, 0) != DataDescriptor::kSignature) return std::nullopt;
    bytes = bytes.subspan(4);
  }
  if (bytes.size() == 12)
    return DataDescriptor{load_u32(bytes, 0), load_u32(bytes, 4), load_u32(bytes, 8)};
  if (bytes.size() == 20)
    return DataDescriptor{load_u32(bytes, 0), load_u64(bytes, 4), load_u64(bytes, 12)};
  return std::nullopt;
}

void encode_descriptor(const DataDescriptor& descriptor, bool wide, std::vector<std::byte>& out) {
  encode(DataDescriptor::kSignature, out);
  encode(descriptor.crc, out);
  for (const std::uint64_t bytes : {descriptor.compressed_bytes, descriptor.uncompressed_bytes}) {
    if (wide) {
      encode(bytes, out);
    } else {
      encode(static_cast<std::uint32_t>(bytes), out);
    }
  }
}

std::optional<std::vector<ExtraField>> split_extra(std::span<const std::byte> bytes) {
  std::vector<ExtraField> fields;
  while (!bytes.empty()) {
    if (bytes.size() < 4) return std::nullopt;
    const std::size_t data_bytes = load_u16(bytes, 2);
    if (data_bytes > bytes.size() - 4) return std::nullopt;
    fields.push_back({load_u16(bytes, 0), bytes.subspan(4, data_bytes)});
    bytes = bytes.subspan(4 + data_bytes);
  }
  return fields;
}

void encode_extra_head(std::uint16_t id, std::size_t data_bytes, std::vector<std::byte>& out) {
  encode(id, out);
  encode(static_cast<std::uint16_t>(data_bytes), out);
}

}  // namespace fsdp::formats::zip
