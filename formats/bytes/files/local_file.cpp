// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/local_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/hub_cache.h"
#include "formats/bytes/files/run_window.h"

namespace fsdp::formats {
namespace {

std::int64_t mtime_of(const struct stat& info) {
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

// Opens a file beneath a folder, component by component, for kernels without openat2: no link, no
// "..", nothing absolute.
int open_beneath_by_component(int directory, const std::string& path) {
  FileDescriptor reached(::openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::size_t begin = 0;
  while (reached.get() >= 0) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == ".." || (part.empty() && begin == 0)) {
      errno = EXDEV;
      return -1;
    }
    const bool last = end == path.size();
    const int flags = last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY;
    const int fd =
        ::openat(reached.get(), part.empty() ? "." : part.c_str(), flags | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ELOOP) errno = EXDEV;
    if (last || fd < 0) return fd;
    reached = FileDescriptor(fd);
    begin = end + 1;
  }
  return -1;
}

int open_beneath(int directory, const std::string& path) {
  struct open_how how {};
  // O_NONBLOCK: opening a pipe that has no writer must not hang.
  how.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how);
  if (fd >= 0 || errno != ENOSYS) return static_cast<int>(fd);
  return open_beneath_by_component(directory, path);
}

// Opens the blob that a link out of the folder leads to, if it is a snapshot of the hub's cache.
// errno is EXDEV where the link leads elsewhere.
int open_cached_blob(const std::filesystem::path& folder, const std::string& path) {
  const auto blob = blob_of_link(folder, path);
  // The folder of blobs must not be a link: it would lead anywhere.
  const FileDescriptor blobs(
      blob ? ::open(blob->folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1);
  if (blobs.get() >= 0) return open_beneath(blobs.get(), blob->name);
  if (!blob || errno != ENOENT) errno = EXDEV;
  return -1;
}

void read_fully(int fd, std::uint64_t offset, std::span<std::byte> out, const std::string& name,
                std::uint64_t size) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw Error(ErrorCode::kChanged, name, ": ends at byte ", offset + done, ", but had ", size,
                  " bytes when it was opened");
    } else if (errno != EINTR) {
      throw_errno(cat(name, ": reading ", out.size(), " bytes at byte ", offset));
    }
  }
}

}  // namespace

void throw_errno(const std::string& what) {
  const int number = errno;
  ErrorCode code = ErrorCode::kIo;
  if (number == ENOENT || number == ENOTDIR) code = ErrorCode::kNotFound;
  if (number == ENOSPC || number == EDQUOT || number == EFBIG) code = ErrorCode::kNoSpace;
  if (number == ENOMEM) code = ErrorCode::kOutOfMemory;
  throw Error(code, what + ": " + std::generic_category().message(number));
}

LocalFile::LocalFile(FileDescriptor fd, std::string name)
    : File(std::move(name)), fd_(std::move(fd)) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno(this->name());
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kNotRegular, this->name(), ": is ", kind_of(info.st_mode),
                ", expected a regular file");
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  size_ = static_cast<std::uint64_t>(info.st_size);
  mtime_ns_ = mtime_of(info);
}

void LocalFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size());
  read_fully(fd_.get(), offset, out, name(), size_);
}

void LocalFile::read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                         RunWindow& window) const {
  window.read(*this, offset, out, end);
}

bool LocalFile::will_read(std::uint64_t offset, std::uint64_t count) const noexcept {
  // If the kernel ignores this, the bytes are fetched when they are read.
  (void)::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(count),
                        POSIX_FADV_WILLNEED);
  return false;
}

void LocalFile::check_unchanged() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno(name());
  if (static_cast<std::uint64_t>(info.st_size) != size_ || mtime_of(info) != mtime_ns_)
    throw Error(ErrorCode::kChanged, name() + ": was written to while it was being read");
}

LocalFolder::LocalFolder(const std::filesystem::path& path)
    : Folder(path), fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_.get() < 0) throw_errno(escape(path.native()));
}

std::shared_ptr<const File> LocalFolder::find(const std::string& relative_path) const {
  const std::string shown = escape((path() / relative_path).native());
  FileDescriptor fd(open_beneath(fd_.get(), relative_path));
  if (fd.get() < 0 && errno == EXDEV) fd = FileDescriptor(open_cached_blob(path(), relative_path));
  if (fd.get() < 0) {
    const auto refuse = [&](ErrorCode code, std::string_view why) {
      return refusal(code, relative_path, why);
    };
    if (errno == ENOENT || errno == ENOTDIR) return nullptr;
    if (errno == EXDEV) throw refuse(ErrorCode::kPathEscape, "leads outside the folder");
    if (errno == ELOOP) throw refuse(ErrorCode::kPath, "is a loop of links");
    if (errno == ENAMETOOLONG) throw refuse(ErrorCode::kPath, "is too long for this file system");
    throw_errno(shown);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) == 0 && S_ISDIR(info.st_mode))
    throw refusal(ErrorCode::kPath, relative_path, "is a folder");
  return std::make_shared<LocalFile>(std::move(fd), shown);
}

std::vector<std::string> LocalFolder::names() const {
  return names_in(fd_.get(), escape(path().native()));
}

bool LocalFolder::is_folder(const std::string& name) const {
  struct stat info {};
  if (::fstatat(fd_.get(), name.c_str(), &info, 0) == 0) return S_ISDIR(info.st_mode);
  // A link that leads nowhere is not a folder.
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG ||
      errno == EACCES) {
    return false;
  }
  throw_errno(escape((path() / name).native()));
}

void LocalFolder::each_file(const std::function<void(std::string path)>& take) const {
  const std::function<void(int, const std::string&, int)> walk =
      [&](int folder, const std::string& prefix, int depth) {
        check_depth(prefix, depth);
        const std::string shown = escape((path() / prefix).native());
        for (const std::string& name : names_in(folder, shown)) {
          struct stat info {};
          if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) continue;
            throw_errno(cat(shown, ": ", quote(name)));
          }
          if (S_ISDIR(info.st_mode)) {
            walk(open_folder_in(folder, name, shown).get(), prefix + name + "/", depth + 1);
          } else {
            take(prefix + name);
          }
        }
      };
  walk(fd_.get(), "", 0);
}

bool is_plain_name(std::string_view name) noexcept {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

std::vector<std::string> names_in(int folder, const std::string& shown) {
  // A fresh descriptor: readdir moves the position of the one it is given.
  FileDescriptor fd(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(shown);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
  if (!stream) throw_errno(shown);
  fd.release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) throw_errno(shown);
  std::ranges::sort(names);
  return names;
}

FileDescriptor open_folder_in(int folder, const std::string& name, const std::string& shown) {
  FileDescriptor fd(
      ::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(cat(shown, ": ", quote(name)));
  return fd;
}

SpillFile::SpillFile() {
  const char* folder = std::getenv("TMPDIR");
  if (folder == nullptr || *folder == '\0') folder = "/tmp";
  fd_ = FileDescriptor(::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd_.get() < 0) throw_errno(cat("temporary file in ", escape(folder)));
}

std::uint64_t SpillFile::size() const {
  return size_;
}

void SpillFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  read_fully(fd_.get(), offset, out, "temporary file", size_);
}

void SpillFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_errno("temporary file");
    }
    size_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace fsdp::formats
