// SPDX-License-Identifier: Apache-2.0
// The records of a zip archive, converted between structs and bytes.
// Source: PKWARE APPNOTE 6.3.10, clauses in brackets.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace fsdp::formats::zip {

// Bits of CommonFields::flags [4.4.4].
constexpr std::uint16_t kFlagDeflateLevel = 0x0006;
constexpr std::uint16_t kFlagDescriptor = 0x0008;  // CRC and sizes come after the payload
constexpr std::uint16_t kFlagUtf8 = 0x0800;

constexpr std::uint16_t kMethodStored = 0;  // [4.4.5]
constexpr std::uint16_t kMethodDeflated = 8;

// A field with this value is in the zip64 extra field instead [4.5.3].
constexpr std::uint32_t kInZip64 = 0xFFFFFFFF;

constexpr std::uint16_t kExtraZip64 = 0x0001;
// "FB": the padding with which PyTorch aligns payloads.
constexpr std::uint16_t kExtraPadding = 0x4246;

// The structs below are the records as they lie in a file: without gaps, little-endian.
static_assert(std::endian::native == std::endian::little);
#pragma pack(push, 1)

// The fields that a local header and its central header share, in this order.
struct CommonFields {
  std::uint16_t version_needed = 0;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint16_t time = 0;
  std::uint16_t date = 0;
  std::uint32_t crc = 0;
  std::uint32_t compressed_bytes = 0;
  std::uint32_t uncompressed_bytes = 0;
  std::uint16_t name_bytes = 0;
  std::uint16_t extra_bytes = 0;
};

struct LocalHeader {  // [4.3.7]; followed by name and extra fields
  static constexpr std::uint32_t kSignature = 0x04034B50;
  static constexpr std::size_t kBytes = 30;
  std::uint32_t signature = kSignature;
  CommonFields common;
};

struct CentralHeader {  // [4.3.12]; followed by name, extra fields and comment
  static constexpr std::uint32_t kSignature = 0x02014B50;
  static constexpr std::size_t kBytes = 46;
  std::uint32_t signature = kSignature;
  std::uint16_t version_made_by = 0;
  CommonFields common;
  std::uint16_t comment_bytes = 0;
  std::uint16_t disk = 0;
  std::uint16_t internal_attributes = 0;
  std::uint32_t external_attributes = 0;
  std::uint32_t header_offset = 0;
};

struct Zip64EndRecord {  // [4.3.14]
  static constexpr std::uint32_t kSignature = 0x06064B50;
  static constexpr std::size_t kBytes = 56;
  std::uint32_t signature = kSignature;
  std::uint64_t rest_bytes = kBytes - 12;  // of the record, after this field
  std::uint16_t version_made_by = 0;
  std::uint16_t version_needed = 0;
  std::uint32_t disk = 0;
  std::uint32_t directory_disk = 0;
  std::uint64_t entries_on_disk = 0;
  std::uint64_t entries = 0;
  std::uint64_t directory_bytes = 0;
  std::uint64_t directory_offset = 0;
};

struct Zip64Locator {  // [4.3.15]
  static constexpr std::uint32_t kSignature = 0x07064B50;
  static constexpr std::size_t kBytes = 20;
  std::uint32_t signature = kSignature;
  std::uint32_t disk = 0;
  std::uint64_t record_offset = 0;
  std::uint32_t disks = 1;
};

struct EndRecord {  // [4.3.16]
  static constexpr std::uint32_t kSignature = 0x06054B50;
  static constexpr std::size_t kBytes = 22;
  std::uint32_t signature = kSignature;
  std::uint16_t disk = 0;
  std::uint16_t directory_disk = 0;
  std::uint16_t entries_on_disk = 0;
  std::uint16_t entries = 0;
  std::uint32_t directory_bytes = 0;
  std::uint32_t directory_offset = 0;
  std::uint16_t comment_bytes = 0;
};

#pragma pack(pop)
static_assert(sizeof(LocalHeader) == LocalHeader::kBytes);
static_assert(sizeof(CentralHeader) == CentralHeader::kBytes);
static_assert(sizeof(Zip64EndRecord) == Zip64EndRecord::kBytes);
static_assert(sizeof(Zip64Locator) == Zip64Locator::kBytes);
static_assert(sizeof(EndRecord) == EndRecord::kBytes);

// [4.3.9]; the sizes are 4 bytes each, or 8.
struct DataDescriptor {
  static constexpr std::uint32_t kSignature = 0x08074B50;
  static constexpr std::size_t kCrcOffset = 4;  // where it has a signature
  std::uint32_t crc = 0;
  std::uint64_t compressed_bytes = 0;
  std::uint64_t uncompressed_bytes = 0;
};

// Appends the bytes of a record, or of a number.
template <typename Record>
void encode(const Record& record, std::vector<std::byte>& out) {
  const auto bytes = std::as_bytes(std::span(&record, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Returns the record in the first kBytes bytes, whatever their signature.  Requires: `bytes` has at
// least kBytes bytes.
template <typename Record>
Record decode(std::span<const std::byte> bytes) {
  assert(bytes.size() >= Record::kBytes);
  Record record;
  std::memcpy(&record, bytes.data(), sizeof record);
  return record;
}

// Decodes a descriptor.  Only its size identifies the kind: 12 bytes, or 20 with sizes of 8 bytes,
// and 4 more with a signature.  nullopt for another size or another signature.
std::optional<DataDescriptor> decode_descriptor(std::span<const std::byte> bytes);
// Appends a descriptor with signature: 16 bytes, or 24 if `wide`.
void encode_descriptor(const DataDescriptor& descriptor, bool wide, std::vector<std::byte>& out);

// One extra field [4.5.1].
struct ExtraField {
  std::uint16_t id = 0;
  std::span<const std::byte> data;
};
// Returns the fields that fill `bytes`; nullopt if they do not fill them exactly.
// Lifetime: the fields point into `bytes`.
std::optional<std::vector<ExtraField>> split_extra(std::span<const std::byte> bytes);
// Appends the head of an extra field with `data_bytes` bytes of data.
void encode_extra_head(std::uint16_t id, std::size_t data_bytes, std::vector<std::byte>& out);

}  // namespace fsdp::formats::zip
