// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/new_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Returns the folder that `destination` lies in; "." for a bare name.
fs::path folder_of(const fs::path& destination) {
  std::string text = destination.native();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  const fs::path folder = fs::path(text).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

bool is_there(const fs::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0;
}

}  // namespace

NewFolders::NewFolders(const fs::path& destination) {
  std::vector<fs::path> missing;  // innermost first
  for (fs::path at = folder_of(destination); !is_there(at); at = folder_of(at)) {
    missing.push_back(at);
    if (at == folder_of(at)) break;
  }
  made_.reserve(missing.size());
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0777) == 0) {
      made_.push_back(folder->native());
    } else if (errno != EEXIST) {  // EEXIST: another process was faster
      const int number = errno;
      remove();
      errno = number;
      throw_errno(
          cat(escape(destination.native()), ": making folder ", quote(folder->native(), 4096)));
    }
  }
}

void NewFolders::sync() const {
  for (const std::string& folder : made_) {
    const FileDescriptor above(
        ::open(folder_of(folder).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (above.get() < 0 || (::fsync(above.get()) != 0 && errno != EINVAL))
      throw_errno(cat(escape(folder), ": fsync of the folder above it"));
  }
}

void NewFolders::remove() noexcept {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) ::rmdir(folder->c_str());
}

fs::path existing_folder_above(const fs::path& destination) {
  fs::path at = folder_of(fs::absolute(destination).lexically_normal());
  while (!is_there(at) && at != folder_of(at)) at = folder_of(at);
  return at;
}

std::uint64_t free_bytes(const fs::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) throw_errno(escape(folder.native()));
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace fsdp::formats
