// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/no_answer.h"

#include <sys/stat.h>

#include <cerrno>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/store/place.h"

namespace fsdp::formats {

bool is_no_answer(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kIo:
    case ErrorCode::kNoSpace:  // for a temporary file that is read through
    case ErrorCode::kChanged:
    case ErrorCode::kAccess:  // a store refuses
    case ErrorCode::kNetwork:
    case ErrorCode::kInterrupted:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kH5ReaderFailed:  // libhdf5 ended before it described the file
      return true;
    default:
      return false;
  }
}

bool exists_at(const std::filesystem::path& path) {
  if (in_store(path)) return exists_in_store(path);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == EACCES) return false;
  throw_errno(escape(path.native()));
}

}  // namespace fsdp::formats
