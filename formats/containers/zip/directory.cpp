// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/directory.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/bytes/base/byte_reader.h"
#include "formats/containers/zip/inflate_stream.h"

namespace fsdp::formats {
namespace {

using zip::CentralHeader;
using zip::EndRecord;
using zip::Zip64EndRecord;
using zip::Zip64Locator;

// The size of an end record with the longest comment: how far from the end the record is searched,
// to explain why it is not where it should be.
constexpr std::uint64_t kEndSearchBytes = EndRecord::kBytes + 0xFFFF;

// The last bytes of an archive, filled by end records.
constexpr std::uint64_t kTailBytes =
    Zip64EndRecord::kBytes + Zip64Locator::kBytes + EndRecord::kBytes;

// Returns the position of the last signature of an end record in [begin, end) of the source.
std::optional<std::uint64_t> find_end_record(const ByteSource& source, std::uint64_t begin,
                                             std::uint64_t end) {
  if (begin >= end) return std::nullopt;
  begin = std::max(begin, end - std::min(end, kEndSearchBytes));
  const auto bytes = read_bytes(source, begin, end - begin);
  for (std::size_t at = bytes.size(); at >= 4; --at) {
    if (load_u32(bytes, at - 4) == EndRecord::kSignature) return begin + at - 4;
  }
  return std::nullopt;
}

// Returns the error that explains why the last 22 bytes are not an end record.
Error no_end_record(const ByteSource& source) {
  const std::uint64_t size = source.size();
  const auto found = find_end_record(source, 0, size);
  if (!found || size - *found < EndRecord::kBytes) {
    return zip_error(ErrorCode::kZipEocd, "no end record in the last bytes of ", size,
                     ": the archive is cut off, or is not a zip archive");
  }
  const auto end = zip::decode<EndRecord>(read_bytes(source, *found, EndRecord::kBytes));
  const std::uint64_t rest = size - *found - EndRecord::kBytes;
  if (rest == end.comment_bytes) {
    return zip_error(ErrorCode::kZipFraming, "the archive has a comment of ", rest,
                     " bytes, expected its end record at the very end");
  }
  return zip_error(ErrorCode::kZipFraming, "the end record at byte ", *found, " is followed by ",
                   rest, " bytes, expected none");
}

// Explains why the directory does not end where the end records begin, or why these are not at
// their stated place: bytes before or after the archive if there are any, else `otherwise`.
Error misplaced(const ByteSource& source, std::uint64_t directory_end, const Error& otherwise) {
  const std::uint64_t end_offset = source.size() - EndRecord::kBytes;
  std::array<std::byte, 4> magic{};
  source.read_at(0, magic);
  if (load_u32(magic, 0) != zip::LocalHeader::kSignature &&
      load_u32(magic, 0) != EndRecord::kSignature) {
    return zip_error(ErrorCode::kZipFraming,
                     "the archive does not begin at byte 0 with a local header");
  }
  if (const auto other = find_end_record(source, directory_end, end_offset)) {
    return zip_error(ErrorCode::kZipFraming, "there are two end records, at bytes ", *other,
                     " and ", end_offset);
  }
  return otherwise;
}

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
  std::optional<Zip64EndRecord> zip64;
};

// Returns whether a classic field is `value`, or refers to zip64.
template <typename T>
bool agrees(T classic, std::uint64_t value) {
  constexpr T kAllOnes = static_cast<T>(~T{0});
  return classic == kAllOnes || classic == value;
}

Extent read_zip64(const ByteSource& source, std::span<const std::byte> tail, const EndRecord& end) {
  const std::uint64_t locator_offset = source.size() - EndRecord::kBytes - Zip64Locator::kBytes;
  const auto locator =
      zip::decode<Zip64Locator>(tail.last(EndRecord::kBytes + Zip64Locator::kBytes));
  const auto fail = [&](auto... args) { return zip_error(ErrorCode::kZip64, args...); };
  if (locator.disk != 0 || locator.disks != 1) {
    throw fail("the zip64 locator at byte ", locator_offset, " names disk ", locator.disk, " of ",
               locator.disks, ", expected 0 of 1");
  }
  if (locator_offset < Zip64EndRecord::kBytes ||
      locator.record_offset != locator_offset - Zip64EndRecord::kBytes) {
    throw misplaced(
        source, locator.record_offset,
        fail("the zip64 locator at byte ", locator_offset, " puts the zip64 end record at byte ",
             locator.record_offset, ", expected it directly before"));
  }
  const auto record = zip::decode<Zip64EndRecord>(tail);
  if (record.signature != Zip64EndRecord::kSignature)
    throw fail("no zip64 end record at byte ", locator.record_offset);
  const std::uint64_t rest_bytes = Zip64EndRecord::kBytes - 12;
  if (record.rest_bytes != rest_bytes) {
    throw fail("the zip64 end record says that it has ", record.rest_bytes,
               " more bytes, expected ", rest_bytes);
  }
  if (record.disk != 0 || record.directory_disk != 0 || record.entries_on_disk != record.entries) {
    throw fail("the zip64 end record spans disks: disk ", record.disk, ", directory on disk ",
               record.directory_disk, ", ", record.entries_on_disk, " of ", record.entries,
               " entries");
  }
  if (record.directory_offset > locator.record_offset ||
      record.directory_bytes != locator.record_offset - record.directory_offset) {
    throw fail("the zip64 end record puts a directory of ", record.directory_bytes,
               " bytes at byte ", record.directory_offset, ", expected it to end at byte ",
               locator.record_offset);
  }
  const auto check = [](std::string_view field, auto classic, std::uint64_t value) {
    if (!agrees(classic, value)) {
      throw zip_error(ErrorCode::kZipEocd, "the end record says ", field, " ", classic,
                      ", the zip64 end record ", value);
    }
  };
  check("entries", end.entries, record.entries);
  check("directory_bytes", end.directory_bytes, record.directory_bytes);
  check("directory_offset", end.directory_offset, record.directory_offset);
  return {record.directory_offset, record.directory_bytes, record.entries, record};
}

Extent read_classic(const ByteSource& source, const EndRecord& end) {
  const std::uint64_t end_offset = source.size() - EndRecord::kBytes;
  const std::uint64_t directory_end = std::uint64_t{end.directory_offset} + end.directory_bytes;
  if (directory_end != end_offset) {
    const bool wants_zip64 =
        end.directory_offset == zip::kInZip64 || end.directory_bytes == zip::kInZip64;
    throw misplaced(source, directory_end,
                    wants_zip64
                        ? zip_error(ErrorCode::kZip64,
                                    "the end record leaves values to a zip64 end record, but there "
                                    "is none before byte ",
                                    end_offset)
                        : zip_error(ErrorCode::kZipEocd, "the end record puts a directory of ",
                                    end.directory_bytes, " bytes at byte ", end.directory_offset,
                                    ", expected it to end at byte ", end_offset));
  }
  return {end.directory_offset, end.directory_bytes, end.entries, std::nullopt};
}

Extent locate_directory(const ByteSource& source) {
  const std::uint64_t size = source.size();
  if (size < EndRecord::kBytes) {
    throw zip_error(ErrorCode::kZipEocd, "an archive has at least ", EndRecord::kBytes,
                    " bytes, but there are only ", size);
  }
  const auto tail =
      read_bytes(source, size - std::min(size, kTailBytes), std::min(size, kTailBytes));
  const auto end = zip::decode<EndRecord>(std::span(tail).last(EndRecord::kBytes));
  if (end.signature != EndRecord::kSignature) throw no_end_record(source);
  if (end.comment_bytes != 0) {
    throw zip_error(ErrorCode::kZipEocd, "the end record says comment_bytes ", end.comment_bytes,
                    ", but the archive ends behind it");
  }
  if (end.disk != 0 || end.directory_disk != 0 || end.entries_on_disk != end.entries) {
    throw zip_error(ErrorCode::kZipEocd, "the end record spans disks: disk ", end.disk,
                    ", directory on disk ", end.directory_disk, ", ", end.entries_on_disk, " of ",
                    end.entries, " entries");
  }
  constexpr std::size_t kEnds = EndRecord::kBytes + Zip64Locator::kBytes;
  const bool has_locator =
      tail.size() >= kEnds && load_u32(tail, tail.size() - kEnds) == Zip64Locator::kSignature;
  if (!has_locator) return read_classic(source, end);
  return read_zip64(source, tail, end);
}

// This library never uses names as paths, but other tools may, with names that it passes on.
void check_name(std::string_view name) {
  std::string_view why;
  if (name.empty()) why = "is empty";
  if (name.starts_with('/')) why = "is absolute";
  if (name.find('\\') != std::string_view::npos) why = "contains a backslash";
  if (name.find('\0') != std::string_view::npos) why = "contains a NUL byte";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") why = "contains '..'";
    begin = end + 1;
  }
  if (!why.empty()) throw zip_error(ErrorCode::kZipName, "entry name ", quote(name), " ", why);
}

void check_readable(const CentralHeader& header, std::string_view name) {
  constexpr std::uint16_t kKnownFlags =
      zip::kFlagDeflateLevel | zip::kFlagDescriptor | zip::kFlagUtf8;
  const auto refuse = [&](auto... args) {
    return zip_error(ErrorCode::kUnsupported, "entry ", quote(name), " ", args...);
  };
  if ((header.common.flags & 1U) != 0) throw refuse("is encrypted");
  if ((header.common.flags & ~kKnownFlags) != 0)
    throw refuse("has flags ", header.common.flags, ", some of them unknown");
  if (header.common.method != zip::kMethodStored && header.common.method != zip::kMethodDeflated) {
    throw refuse("has compression method ", header.common.method,
                 ", expected 0 (stored) or 8 (deflated)");
  }
  if (header.disk != 0) throw refuse("is on disk ", header.disk, ", expected 0");
}

// Replaces each value that is 0xFFFFFFFF in the classic field by that in the zip64 extra field
// [4.5.3].
void apply_zip64(std::span<const std::byte> data, ZipEntry& entry) {
  std::size_t wanted = 0;
  for (std::uint64_t* const value :
       {&entry.uncompressed_bytes, &entry.compressed_bytes, &entry.header_offset}) {
    if (*value != zip::kInZip64) continue;
    if (data.size() < wanted + 8) {
      throw zip_error(ErrorCode::kZip64, "entry ", quote(entry.name), " has a zip64 field of ",
                      data.size(), " bytes, expected at least ", wanted + 8);
    }
    *value = load_u64(data, wanted);
    wanted += 8;
  }
  if (data.size() != wanted) {
    throw zip_error(ErrorCode::kZip64, "entry ", quote(entry.name), " has a zip64 field of ",
                    data.size(), " bytes, expected ", wanted);
  }
}

// Returns whether there are extra fields other than zip64's.
bool read_extra(std::span<const std::byte> extra, ZipEntry& entry) {
  const auto fields = zip::split_extra(extra);
  if (!fields) {
    throw zip_error(ErrorCode::kZipFraming, "the extra fields of entry ", quote(entry.name),
                    " in the directory do not fill the ", extra.size(), " bytes that they have");
  }
  std::span<const std::byte> zip64;
  std::size_t zip64_count = 0;
  for (const zip::ExtraField& field : *fields) {
    if (field.id != zip::kExtraZip64) continue;
    zip64 = field.data;
    ++zip64_count;
  }
  if (zip64_count > 1) {
    throw zip_error(ErrorCode::kZip64, "entry ", quote(entry.name), " has ", zip64_count,
                    " zip64 fields");
  }
  apply_zip64(zip64, entry);
  return fields->size() > zip64_count;
}

// Throws unless header, name and payload fit before the directory.  The local extra fields are not
// known yet.
void check_extent(const ZipEntry& entry, std::uint64_t directory_offset) {
  const std::uint64_t head_bytes = zip::LocalHeader::kBytes + entry.name.size();
  if (entry.header_offset > directory_offset ||
      directory_offset - entry.header_offset < head_bytes ||
      directory_offset - entry.header_offset - head_bytes < entry.compressed_bytes) {
    throw zip_error(ErrorCode::kZipExtent, "entry ", quote(entry.name), " of ",
                    entry.compressed_bytes, " bytes at byte ", entry.header_offset,
                    " does not end before the directory at byte ", directory_offset);
  }
  if (!entry.deflated && entry.compressed_bytes != entry.uncompressed_bytes) {
    throw zip_error(ErrorCode::kZipExtent, "entry ", quote(entry.name), " is stored, but has ",
                    entry.compressed_bytes, " bytes compressed and ", entry.uncompressed_bytes,
                    " uncompressed");
  }
  if (entry.deflated && entry.uncompressed_bytes / kMaxDeflateRatio > entry.compressed_bytes) {
    throw zip_error(ErrorCode::kLimitRatio, "entry ", quote(entry.name),
                    " is said to inflate from ", entry.compressed_bytes, " to ",
                    entry.uncompressed_bytes, " bytes, more than ", kMaxDeflateRatio,
                    " times as much");
  }
}

}  // namespace

ZipDirectory read_zip_directory(const ByteSource& source, const ZipLimits& limits) {
  const Extent extent = locate_directory(source);
  if (extent.entries > limits.max_entries) {
    throw zip_error(ErrorCode::kLimitEntries, extent.entries, " entries, at most ",
                    limits.max_entries, " are read");
  }
  if (extent.bytes > limits.max_directory_bytes) {
    throw zip_error(ErrorCode::kLimitSize, "a directory of ", extent.bytes, " bytes, at most ",
                    limits.max_directory_bytes, " are read");
  }
  const auto count_is_wrong = [&](auto... args) {
    return zip_error(ErrorCode::kZipEocd, "the end record counts ", extent.entries,
                     " entries, but ", args...);
  };
  if (extent.bytes / CentralHeader::kBytes < extent.entries)
    throw count_is_wrong("the directory has only ", extent.bytes, " bytes");
  ZipDirectory directory;
  directory.offset = extent.offset;
  directory.zip64 = extent.zip64;
  directory.entries.reserve(static_cast<std::size_t>(extent.entries));
  directory.headers.reserve(static_cast<std::size_t>(extent.entries));
  directory.has_other_extra.reserve(static_cast<std::size_t>(extent.entries));

  const auto bytes = read_bytes(source, extent.offset, extent.bytes);
  ByteReader reader(bytes, extent.offset);
  for (std::uint64_t i = 0; i < extent.entries; ++i) {
    const std::uint64_t at = reader.offset();
    if (reader.remaining() < CentralHeader::kBytes)
      throw count_is_wrong("the directory ends after ", i);
    const auto header =
        zip::decode<CentralHeader>(reader.take(CentralHeader::kBytes, "directory entry"));
    if (header.signature != CentralHeader::kSignature) {
      throw zip_error(ErrorCode::kZipFraming, "no directory entry at byte ", at, " (number ", i,
                      ")");
    }
    const std::uint64_t variable_bytes =
        std::uint64_t{header.common.name_bytes} + header.common.extra_bytes + header.comment_bytes;
    if (variable_bytes > reader.remaining()) {
      throw zip_error(ErrorCode::kZipFraming, "the directory entry at byte ", at, " has ",
                      variable_bytes, " bytes of name, extra fields and comment, but only ",
                      reader.remaining(), " remain");
    }
    ZipEntry entry{};
    entry.name = reader.text(header.common.name_bytes, "name");
    entry.header_offset = header.header_offset;
    entry.compressed_bytes = header.common.compressed_bytes;
    entry.uncompressed_bytes = header.common.uncompressed_bytes;
    entry.crc = header.common.crc;
    entry.deflated = header.common.method == zip::kMethodDeflated;
    check_name(entry.name);
    check_readable(header, entry.name);
    directory.has_other_extra.push_back(
        read_extra(reader.take(header.common.extra_bytes, "extra"), entry));
    reader.skip(header.comment_bytes, "comment");
    check_extent(entry, extent.offset);
    directory.entries.push_back(std::move(entry));
    directory.headers.push_back(header);
  }
  if (reader.remaining() != 0)
    throw count_is_wrong("the directory has ", reader.remaining(), " bytes more");
  return directory;
}

}  // namespace fsdp::formats
