// SPDX-License-Identifier: Apache-2.0
// Compares the local headers and data descriptors of a zip archive with its directory: the second
// part of ZipReader.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/zip/directory.h"
#include "formats/containers/zip/records.h"

namespace fsdp::formats {

// Bytes of an archive.
struct ZipRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Returns the range of an entry's local header and of the data descriptor that may precede it.
// read_zip_local_headers reads only within this range, unless the extra fields are unusually long.
// `end`: the end of the archive, or of the bytes before its directory.
ZipRange zip_header_range(const ZipEntry& entry, std::uint64_t end);

// Facts from a local header that the directory lacks.
struct ZipLocalFacts {
  zip::LocalHeader header;
  bool padded = false;              // its last extra field is "FB"
  std::uint16_t padding_bytes = 0;  // 'Z's in that field
  bool has_other_extra = false;     // it has extra fields other than zip64's and "FB"
};

// Reads every local header, in small pieces, and fills in data_offset of every entry.  `ahead`: see
// ZipHeaderReading.  Returns one set of facts per entry, in the order of the directory.  Throws:
// like the constructor of ZipReader.
std::vector<ZipLocalFacts> read_zip_local_headers(
    const ByteSource& source, ZipDirectory& directory,
    const std::function<bool(std::uint64_t, std::uint64_t)>& ahead);

// Fills in data_offset of every entry, if all have the marks of torch.save: each payload then lies
// at a multiple of 64, and ends where the next header, or the data descriptor before it, begins.
// Returns false, for archives whose local headers must be read, if an entry lacks them.
bool foretell_payloads(ZipDirectory& directory);

}  // namespace fsdp::formats
