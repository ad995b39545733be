// SPDX-License-Identifier: Apache-2.0
// The central directory of a zip archive and the end records that locate it: the part of ZipReader
// that ignores local headers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/reader.h"
#include "formats/containers/zip/records.h"

namespace fsdp::formats {

struct ZipDirectory {
  std::uint64_t offset =
      0;  // of its first byte; every local header and payload ends at or before it
  std::optional<zip::Zip64EndRecord> zip64;
  std::vector<ZipEntry> entries;            // data_offset stays 0
  std::vector<zip::CentralHeader> headers;  // of the entries, in their order
  std::vector<bool> has_other_extra;        // per entry: it has extra fields other than zip64's
};

// Reads end records and directory.  Checks that each entry is of a supported kind, has a safe name,
// and lies before the directory, as far as sizes without its local header tell.  Throws: like the
// constructor of ZipReader.
ZipDirectory read_zip_directory(const ByteSource& source, const ZipLimits& limits);

// Makes an error about the archive, worded "zip: ...".  By value: fields of records are not
// aligned.
template <typename... Args>
Error zip_error(ErrorCode code, Args... args) {
  return {code, "zip: ", args...};
}

}  // namespace fsdp::formats
