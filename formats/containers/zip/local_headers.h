// SPDX-License-Identifier: Apache-2.0
// The local headers and data descriptors of a zip archive, compared with its directory: the second
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

// Where the local header of an entry lies, with the data descriptor that may stand before it: what
// read_zip_local_headers reads of both lies within, unless the extra fields are unusually long.
// `end`: of the archive, or of what stands before its directory.
ZipRange zip_header_range(const ZipEntry& entry, std::uint64_t end);

// Facts in a local header that are not in the directory.
struct ZipLocalFacts {
  zip::LocalHeader header;
  bool padded = false;              // its last extra field is "FB"
  std::uint16_t padding_bytes = 0;  // 'Z's in there
  bool has_other_extra = false;     // it has extra fields other than zip64's and "FB"
};

// Reads every local header, in small pieces, and fills in data_offset of every entry.  `ahead`: see
// ZipHeaderReading.  Returns the facts of the entries in the order of the directory.  Throws: like
// the constructor of ZipReader.
std::vector<ZipLocalFacts> read_zip_local_headers(
    const ByteSource& source, ZipDirectory& directory,
    const std::function<bool(std::uint64_t, std::uint64_t)>& ahead);

}  // namespace fsdp::formats
