// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/spool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string_view>
#include <system_error>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "fsdp-ckpt-upload-";
// A younger folder may not be locked yet.
constexpr std::time_t kSettledSeconds = 60;

[[noreturn]] void fail(const fs::path& path, int number) {
  const bool full = number == ENOSPC || number == EDQUOT;
  throw Error(full ? ErrorCode::kNoSpace : ErrorCode::kIo,
              cat(escape(path.native()), ": ", std::strerror(number)));
}

fs::path temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder == nullptr || *folder == '\0' ? "/tmp" : folder;
}

FileDescriptor lock_of(const fs::path& folder) {
  FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) fd.reset();
  return fd;
}

// Removes the folders of this user's killed processes: nobody holds their locks.
void remove_leftovers(const fs::path& above) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(above, ignored)) {
    if (!entry.path().filename().native().starts_with(kPrefix)) continue;
    struct stat info {};
    if (::lstat(entry.path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
        info.st_uid != ::geteuid() || ::time(nullptr) - info.st_mtime < kSettledSeconds) {
      continue;
    }
    const FileDescriptor fd = lock_of(entry.path());
    if (fd.get() >= 0) fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

Spool::Spool() {
  const fs::path above = temporary_folder();
  remove_leftovers(above);
  std::string name = (above / (std::string(kPrefix) + "XXXXXX")).native();
  if (::mkdtemp(name.data()) == nullptr) fail(name, errno);
  path_ = name;
  lock_ = lock_of(path_);
}

fs::path Spool::add(const std::string& name) {
  fs::path path = path_ / name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) fail(path.parent_path(), error.value());
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) fail(path, errno);
  return path;
}

void Spool::remove() noexcept {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  lock_.reset();
  path_.clear();
}

}  // namespace fsdp::formats
