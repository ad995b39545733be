// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/options.h"

#include <sys/statvfs.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) throw_errno(escape(folder.native()));
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace fsdp::formats
