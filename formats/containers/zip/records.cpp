// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/records.h"

#include <cassert>
#include <type_traits>

#include "formats/bytes/base/byte_reader.h"

namespace fsdp::formats::zip {
namespace {

// Lists the fields of each record once, in file order, for reading and writing: `visit` is called
// with every field.  `Record` is const when fields are written.
template <typename Record, typename Visit>
void each_common_field(Record& record, const Visit& visit) {
  visit(record.version_needed);
  visit(record.flags);
  visit(record.method);
  visit(record.time);
  visit(record.date);
  visit(record.crc);
  visit(record.compressed_bytes);
  visit(record.uncompressed_bytes);
  visit(record.name_bytes);
  visit(record.extra_bytes);
}

template <typename Record, typename Visit>
void each_field(Record& record, const Visit& visit) {
  using Type = std::remove_const_t<Record>;
  visit(record.signature);
  if constexpr (std::is_same_v<Type, LocalHeader>) {
    each_common_field(record.common, visit);
  } else if constexpr (std::is_same_v<Type, CentralHeader>) {
    visit(record.version_made_by);
    each_common_field(record.common, visit);
    visit(record.comment_bytes);
    visit(record.disk);
    visit(record.internal_attributes);
    visit(record.external_attributes);
    visit(record.header_offset);
  } else if constexpr (std::is_same_v<Type, Zip64EndRecord>) {
    visit(record.rest_bytes);
    visit(record.version_made_by);
    visit(record.version_needed);
    visit(record.disk);
    visit(record.directory_disk);
    visit(record.entries_on_disk);
    visit(record.entries);
    visit(record.directory_bytes);
    visit(record.directory_offset);
  } else if constexpr (std::is_same_v<Type, Zip64Locator>) {
    visit(record.disk);
    visit(record.record_offset);
    visit(record.disks);
  } else {
    static_assert(std::is_same_v<Type, EndRecord>);
    visit(record.disk);
    visit(record.directory_disk);
    visit(record.entries_on_disk);
    visit(record.entries);
    visit(record.directory_bytes);
    visit(record.directory_offset);
    visit(record.comment_bytes);
  }
}

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  if constexpr (sizeof(T) == 2) return load_u16(bytes, at);
  if constexpr (sizeof(T) == 4) return load_u32(bytes, at);
  if constexpr (sizeof(T) == 8) return load_u64(bytes, at);
}

template <typename T>
void append(T value, std::vector<std::byte>& out) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xFF));
  }
}

}  // namespace

template <typename Record>
Record decode(std::span<const std::byte> bytes) {
  assert(bytes.size() >= Record::kBytes);
  Record record;
  std::size_t at = 0;
  each_field(record, [&](auto& field) {
    field = load<std::remove_reference_t<decltype(field)>>(bytes, at);
    at += sizeof field;
  });
  assert(at == Record::kBytes);
  return record;
}

template <typename Record>
void encode(const Record& record, std::vector<std::byte>& out) {
  each_field(record, [&](const auto& field) { append(field, out); });
}

template LocalHeader decode(std::span<const std::byte>);
template CentralHeader decode(std::span<const std::byte>);
template Zip64EndRecord decode(std::span<const std::byte>);
template Zip64Locator decode(std::span<const std::byte>);
template EndRecord decode(std::span<const std::byte>);
template void encode(const LocalHeader&, std::vector<std::byte>&);
template void encode(const CentralHeader&, std::vector<std::byte>&);
template void encode(const Zip64EndRecord&, std::vector<std::byte>&);
template void encode(const Zip64Locator&, std::vector<std::byte>&);
template void encode(const EndRecord&, std::vector<std::byte>&);

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
  append(DataDescriptor::kSignature, out);
  append(descriptor.crc, out);
  for (const std::uint64_t bytes : {descriptor.compressed_bytes, descriptor.uncompressed_bytes}) {
    if (wide) {
      append(bytes, out);
    } else {
      append(static_cast<std::uint32_t>(bytes), out);
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
  append(id, out);
  append(static_cast<std::uint16_t>(data_bytes), out);
}

void append_u64(std::uint64_t value, std::vector<std::byte>& out) {
  append(value, out);
}

}  // namespace fsdp::formats::zip
