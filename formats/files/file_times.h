// SPDX-License-Identifier: Apache-2.0
// When a file came to be and was last written to, with what tells it from others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "formats/files/file.h"

namespace fsdp::formats {

// Times in nanoseconds since the epoch.
struct FileTimes {
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;
  std::optional<std::int64_t> born_ns;  // where the file system knows
};

// As the file is now.  Throws: kIo.
FileTimes times_of(const File& file);
// Nothing where no regular file stands there; links are not followed.
std::optional<FileTimes> times_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
