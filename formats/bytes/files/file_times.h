// SPDX-License-Identifier: Apache-2.0
// The times when a file was created and last written to, with its identity.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "formats/bytes/files/file.h"

namespace fsdp::formats {

// Times in nanoseconds since the epoch.
struct FileTimes {
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;  // 0: of a store
  std::int64_t modified_ns = 0;
  std::optional<std::int64_t> born_ns;  // if the file system knows
};

// Returns the present state of the file.  Throws: kIo.
FileTimes times_of(const File& file);
// Returns nothing if the path is not a regular file, without following links, or if a store names
// no time.
std::optional<FileTimes> times_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
