// SPDX-License-Identifier: Apache-2.0
// Reads the directory of a zip archive, strictly; entries are located, never extracted to disk.
// Source: PKWARE APPNOTE 6.3.10, clauses in brackets.  Zip64: yes.  Encryption, spanning:
// kUnsupported.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/byte_source.h"

namespace fsdp::formats {

struct ZipEntry {  // [4.3.12]
  std::string name;
  std::uint64_t header_offset;  // of the local header, from the start of the archive
  std::uint64_t data_offset;    // of the first data byte, from the start of the archive
  std::uint64_t compressed_bytes;
  std::uint64_t uncompressed_bytes;
  std::uint32_t crc;  // of the uncompressed bytes
  bool deflated;      // method 8; otherwise stored
};

struct ZipLimits {
  std::uint64_t max_entries = 1'000'000;
  std::uint64_t max_directory_bytes = std::uint64_t{1} << 30;  // it is read as a whole
};

// How local headers are read: in a remote archive each takes a request of its own.
struct ZipHeaderReading {
  // Leave them unread, and compute data_offset, if the directory shows that torch.save wrote the
  // archive.  For callers that only list the entries.
  bool later = false;
  // Hint, called before bytes are read, in the order of reading.  Returns whether more hints are
  // worth giving before something is read.
  std::function<bool(std::uint64_t offset, std::uint64_t bytes)> ahead = {};
};

// A zip archive that begins at byte 0 of its source and ends with its last byte.
//
// Strict, because lenient readers differ from each other: exactly one end record, at the very end;
// zip64 records agree with the classic ones; every local header agrees with its central one (name,
// method, flags, time, and sizes and CRC if given there or in a data descriptor); entries and
// directory follow one another without a gap or an overlap; no name twice; no absolute name, "..",
// backslash or NUL; alignment padding (extra field "FB") holds only 'Z' and aligns.
//
// Every bit of torch.save's output is known, so an archive with its marks must match in every
// field: each flipped bit is then an error here or a wrong CRC of an entry's bytes.
class ZipReader {
 public:
  // Reads the directory and, unless they are left for later, every local header.
  // Throws: kZipEocd, kZipFraming, kZip64, kZipMismatch, kZipOverlap, kZipDuplicate, kZipName,
  // kZipExtent, kZipPadding, kLimitEntries, kLimitRatio, kLimitSize, kUnsupported, and what the
  // source throws.
  explicit ZipReader(const ByteSource& source, const ZipLimits& limits = {},
                     const ZipHeaderReading& reading = {});

  const std::vector<ZipEntry>& entries() const {
    return entries_;
  }  // in the order of the directory
  // Returns the entry with that full name, nullptr if there is none.
  const ZipEntry* find(std::string_view name) const;
  // True if every CRC field of the archive is 0 although some entry has bytes: it was written
  // without CRCs.
  bool without_crcs() const { return without_crcs_; }
  // True if local headers were left for later.
  bool unread_headers() const { return unread_headers_; }

 private:
  std::vector<ZipEntry> entries_;
  std::vector<std::size_t> by_name_;  // positions in entries_, sorted by name
  bool without_crcs_ = false;
  bool unread_headers_ = false;
};

}  // namespace fsdp::formats
