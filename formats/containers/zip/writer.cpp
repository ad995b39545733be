// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/writer.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/records.h"

namespace fsdp::formats {
namespace {

using zip::CentralHeader;
using zip::EndRecord;
using zip::LocalHeader;
using zip::Zip64EndRecord;
using zip::Zip64Locator;

// miniz's values: "made by" zip 3.0 on Unix, zip64 needed.
constexpr std::uint16_t kZip64MadeBy = 0x031E;
constexpr std::uint16_t kZip64Needed = 45;

constexpr std::uint64_t kExtraHeadBytes = 4;

bool needs_zip64(std::uint64_t value) {
  return value >= zip::kInZip64;
}

std::uint32_t clamp_u32(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, zip::kInZip64));
}

// Returns the bytes of values in the zip64 extra field of a record; 0 without this field.  The same
// in local and central header, contrary to APPNOTE [4.5.3].
std::uint64_t zip64_bytes(std::uint64_t header_offset, std::uint64_t bytes) {
  return (needs_zip64(bytes) ? 16U : 0U) + (needs_zip64(header_offset) ? 8U : 0U);
}

std::uint64_t zip64_extra_bytes(std::uint64_t header_offset, std::uint64_t bytes) {
  const std::uint64_t values = zip64_bytes(header_offset, bytes);
  return values == 0 ? 0 : kExtraHeadBytes + values;
}

bool has_wide_descriptor(std::uint64_t header_offset, std::uint64_t bytes) {
  return zip64_bytes(header_offset, bytes) != 0;
}

std::uint64_t descriptor_bytes(std::uint64_t header_offset, std::uint64_t bytes) {
  if (bytes == 0) return 0;
  return has_wide_descriptor(header_offset, bytes) ? 24 : 16;
}

std::uint16_t flags_of(std::uint64_t bytes) {
  return bytes == 0 ? zip::kFlagUtf8 : zip::kFlagUtf8 | zip::kFlagDescriptor;
}

// `compressed_bytes` is separate from `bytes`: miniz writes the local header before the compressed
// size is known.
void encode_zip64(std::uint64_t header_offset, std::uint64_t bytes, std::uint64_t compressed_bytes,
                  std::vector<std::byte>& out) {
  const std::uint64_t values = zip64_bytes(header_offset, bytes);
  if (values == 0) return;
  zip::encode_extra_head(zip::kExtraZip64, values, out);
  if (needs_zip64(bytes)) {
    zip::encode(bytes, out);
    zip::encode(compressed_bytes, out);
  }
  if (needs_zip64(header_offset)) zip::encode(header_offset, out);
}

void append_text(std::string_view text, std::vector<std::byte>& out) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

ZipWriter::ZipWriter(std::string prefix, std::uint64_t alignment)
    : prefix_(std::move(prefix)), alignment_(alignment) {
  assert(std::has_single_bit(alignment) && alignment <= 32768);
}

std::size_t ZipWriter::add(std::string_view name, std::uint64_t bytes) {
  Record record;
  record.name = cat(prefix_, "/", name);
  if (record.name.size() > 0xFFFF) {
    throw Error(ErrorCode::kZipName, "zip: entry name ", quote(record.name), " has ",
                record.name.size(), " bytes, at most 65535");
  }
  record.header_offset = end_;
  record.bytes = bytes;
  const std::uint64_t zip64 = zip64_extra_bytes(end_, bytes);
  const std::uint64_t head_bytes =
      LocalHeader::kBytes + record.name.size() + zip64 + kExtraHeadBytes;
  const std::uint64_t padded_end =
      checked_add(end_, head_bytes + alignment_ - 1, "position of an archive's payload");
  record.payload_offset = padded_end & ~(alignment_ - 1);
  end_ = checked_add(record.payload_offset, bytes, "size of an archive");
  end_ = checked_add(end_, descriptor_bytes(record.header_offset, bytes), "size of an archive");
  directory_bytes_ += CentralHeader::kBytes + record.name.size() + zip64;
  records_.push_back(std::move(record));
  return records_.size() - 1;
}

std::uint64_t ZipWriter::payload_offset(std::size_t record) const {
  return records_.at(record).payload_offset;
}

std::uint64_t ZipWriter::archive_bytes() const {
  return end_ + directory_bytes_ + Zip64EndRecord::kBytes + Zip64Locator::kBytes +
         EndRecord::kBytes;
}

void ZipWriter::set_crc(std::size_t record, std::uint32_t crc) {
  records_.at(record).crc = crc;
}

void ZipWriter::encode_local(const Record& record, std::vector<std::byte>& out) {
  const std::uint64_t extra_offset =
      record.header_offset + LocalHeader::kBytes + record.name.size();
  LocalHeader header;  // CRC and sizes stay 0: the data descriptor has them
  header.common.flags = flags_of(record.bytes);
  header.common.name_bytes = static_cast<std::uint16_t>(record.name.size());
  header.common.extra_bytes = static_cast<std::uint16_t>(record.payload_offset - extra_offset);
  zip::encode(header, out);
  append_text(record.name, out);
  encode_zip64(record.header_offset, record.bytes, 0, out);
  const std::uint64_t padding = header.common.extra_bytes - kExtraHeadBytes -
                                zip64_extra_bytes(record.header_offset, record.bytes);
  zip::encode_extra_head(zip::kExtraPadding, padding, out);
  out.insert(out.end(), static_cast<std::size_t>(padding), std::byte{'Z'});
}

void ZipWriter::encode_central(const Record& record, std::vector<std::byte>& out) {
  CentralHeader header;
  header.common.flags = flags_of(record.bytes);
  header.common.crc = record.crc;
  header.common.compressed_bytes = clamp_u32(record.bytes);
  header.common.uncompressed_bytes = clamp_u32(record.bytes);
  header.common.name_bytes = static_cast<std::uint16_t>(record.name.size());
  header.common.extra_bytes =
      static_cast<std::uint16_t>(zip64_extra_bytes(record.header_offset, record.bytes));
  header.header_offset = clamp_u32(record.header_offset);
  zip::encode(header, out);
  append_text(record.name, out);
  encode_zip64(record.header_offset, record.bytes, record.bytes, out);
}

void ZipWriter::encode_ends(std::uint64_t directory_bytes, std::vector<std::byte>& out) const {
  Zip64EndRecord record;
  record.version_made_by = kZip64MadeBy;
  record.version_needed = kZip64Needed;
  record.entries_on_disk = records_.size();
  record.entries = records_.size();
  record.directory_bytes = directory_bytes;
  record.directory_offset = end_;
  zip::encode(record, out);

  Zip64Locator locator;
  locator.record_offset = end_ + directory_bytes;
  zip::encode(locator, out);

  EndRecord end;
  end.entries = static_cast<std::uint16_t>(std::min<std::size_t>(records_.size(), 0xFFFF));
  end.entries_on_disk = end.entries;
  end.directory_bytes = clamp_u32(directory_bytes);
  end.directory_offset = clamp_u32(end_);
  zip::encode(end, out);
}

void ZipWriter::write_structure(const WriteAt& write_at) const {
  std::vector<std::byte> piece;
  std::uint64_t piece_offset = 0;
  for (const Record& record : records_) {
    encode_local(record, piece);
    if (record.bytes == 0) continue;
    write_at(piece_offset, piece);
    piece.clear();
    piece_offset = record.payload_offset + record.bytes;
    zip::encode_descriptor({record.crc, record.bytes, record.bytes},
                           has_wide_descriptor(record.header_offset, record.bytes), piece);
  }
  for (const Record& record : records_) encode_central(record, piece);
  encode_ends(directory_bytes_, piece);
  write_at(piece_offset, piece);
}

}  // namespace fsdp::formats
