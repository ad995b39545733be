// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/store/hidden_files.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/bytes/store/stored_folder.h"

namespace fsdp::formats {

std::shared_ptr<const File> file_at(const std::filesystem::path& path) {
  if (is_hidden(path)) throw Error(ErrorCode::kNotFound, escape(path.native()), ": no such file");
  if (in_store(path)) {
    const std::string url = url_of(path);
    const std::optional<StoredFile> file = find_stored(url);
    if (!file) throw Error(ErrorCode::kNotFound, escape(url) + ": no such file");
    return source_of(url, *file);
  }
  const std::string name = escape(path.native());
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(name);
  return std::make_shared<LocalFile>(std::move(fd), name);
}

std::shared_ptr<const Folder> folder_at(const std::filesystem::path& path) {
  if (in_store(path)) return std::make_shared<StoredFolder>(url_of(path));
  return std::make_shared<LocalFolder>(path);
}

bool exists_at(const std::filesystem::path& path) {
  if (is_hidden(path)) return false;
  if (in_store(path)) return exists_in_store(path);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == EACCES) return false;
  throw_errno(escape(path.native()));
}

}  // namespace fsdp::formats
