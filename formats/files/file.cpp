// SPDX-License-Identifier: Apache-2.0
#include "formats/files/file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <system_error>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/files/output_place.h"
#include "formats/files/run_window.h"
#include "formats/store/place.h"
#include "formats/store/snapshot.h"
#include "formats/store/stored_folder.h"
#include "formats/store/stored_source.h"

namespace fsdp::formats {
namespace {

// Longest relative path that a checkpoint may name; the kernel's own limit on a path.
constexpr std::size_t kMaxPathBytes = 4096;

// More than any checkpoint has.
constexpr std::size_t kMaxListedFiles = 1'000'000;
constexpr int kMaxFolderDepth = 16;

std::int64_t mtime_of(const struct stat& info) {
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

// A component-wise check for kernels without openat2: no link, no "..", nothing absolute.
int open_beneath_by_component(int directory, const std::string& path) {
  FileDescriptor current(::openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::size_t begin = 0;
  while (current.get() >= 0) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == ".." || (part.empty() && begin == 0)) {
      errno = EXDEV;
      return -1;
    }
    const bool last = end == path.size();
    const int flags = last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY;
    const int fd =
        ::openat(current.get(), part.empty() ? "." : part.c_str(), flags | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ELOOP) errno = EXDEV;
    if (last || fd < 0) return fd;
    current = FileDescriptor(fd);
    begin = end + 1;
  }
  return -1;
}

int open_beneath(int directory, const std::string& path) {
  struct open_how how {};
  // O_NONBLOCK: opening a pipe that nobody writes must not hang.
  how.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how);
  if (fd >= 0 || errno != ENOSYS) return static_cast<int>(fd);
  return open_beneath_by_component(directory, path);
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
      throw Error(ErrorCode::kChanged, cat(name, ": ends at byte ", offset + done, ", but had ",
                                           size, " bytes when it was opened"));
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

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  reset();
}

void FileDescriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::shared_ptr<File> File::open(const std::filesystem::path& path) {
  if (store_of(path.native()) != nullptr) {
    const std::string url = url_of(path);
    std::optional<StoredFile> file = find_stored(url);
    if (!file) throw Error(ErrorCode::kNotFound, escape(url) + ": no such file");
    return std::make_shared<File>(source_of(url, *file));
  }
  const std::string name = escape(path.native());
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(name);
  return std::make_shared<File>(std::move(fd), name);
}

File::File(FileDescriptor fd, std::string name)
    : fd_(std::move(fd)), name_(std::move(name)), number_(next_number()) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno(name_);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kNotRegular,
                name_ + ": is " + std::string(kind_of(info.st_mode)) + ", expected a regular file");
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  size_ = static_cast<std::uint64_t>(info.st_size);
  mtime_ns_ = mtime_of(info);
}

// No device has this number.
File::File(std::shared_ptr<const StoredSource> stored)
    : stored_(std::move(stored)),
      name_(escape(stored_->url())),
      number_(next_number()),
      size_(stored_->size()),
      mtime_ns_(stored_->file().mtime_ns),
      device_(UINT64_MAX),
      inode_(stored_->identity()) {}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (stored_) return stored_->read_at(offset, out);
  if (offset > size_ || out.size() > size_ - offset) {
    throw Error(ErrorCode::kTruncated, cat(name_, ": ", out.size(), " bytes at byte ", offset,
                                           " are wanted, but the file has ", size_));
  }
  read_fully(fd_.get(), offset, out, name_, size_);
}

void File::read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                    RunWindow& window) const {
  if (stored_) return stored_->read_at(offset, out);
  window.read(*this, offset, out, end);
}

bool File::will_read(std::uint64_t offset, std::uint64_t count) const noexcept {
  if (stored_) return stored_->will_read(offset, count);
  // A kernel that ignores this fetches them when they are read.
  (void)::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(count),
                        POSIX_FADV_WILLNEED);
  return false;
}

bool File::read_ahead(std::uint64_t offset, std::uint64_t count) const noexcept {
  return stored_ && stored_->expect(offset, count);
}

void File::check_unchanged() const {
  if (stored_) return stored_->check_unchanged();
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno(name_);
  if (static_cast<std::uint64_t>(info.st_size) != size_ || mtime_of(info) != mtime_ns_) {
    throw Error(ErrorCode::kChanged, name_ + ": was written to while it was being read");
  }
}

Directory Directory::open(const std::filesystem::path& path) {
  if (in_store(path)) {
    const std::string url = url_of(path);
    Directory folder(FileDescriptor(), url);
    folder.stored_ = std::make_shared<StoredFolder>(url);
    return folder;
  }
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(escape(path.native()));
  return {std::move(fd), path};
}

std::shared_ptr<File> Directory::open_member_if_present(const std::string& relative_path) const {
  const std::string folder = escape(path_.native());
  const auto refuse = [&](ErrorCode code, std::string_view why) {
    return Error(code, cat(folder, ": path ", quote(relative_path), " ", why));
  };
  if (relative_path.empty() || relative_path == ".")
    throw refuse(ErrorCode::kPath, "names no file");
  if (relative_path.find('\0') != std::string::npos)
    throw refuse(ErrorCode::kPath, "contains a NUL byte");
  if (relative_path.size() >= kMaxPathBytes) {
    throw refuse(ErrorCode::kPath,
                 cat("is ", relative_path.size(), " bytes long, at most ", kMaxPathBytes - 1));
  }
  if (stored_) {
    for (std::size_t begin = 0; begin <= relative_path.size();) {
      const std::size_t end = std::min(relative_path.find('/', begin), relative_path.size());
      const std::string_view part = std::string_view(relative_path).substr(begin, end - begin);
      if (part == ".." || (part.empty() && begin == 0))
        throw refuse(ErrorCode::kPathEscape, "leads outside the folder");
      if (part.empty() || part == ".") throw refuse(ErrorCode::kPath, "has a part without a name");
      begin = end + 1;
    }
    auto stored = stored_->open(relative_path);
    if (stored) return std::make_shared<File>(std::move(stored));
    if (relative_path.find('/') == std::string::npos && stored_->is_known_folder(relative_path))
      throw refuse(ErrorCode::kPath, "is a folder");
    return nullptr;
  }
  FileDescriptor fd(open_beneath(fd_.get(), relative_path));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return nullptr;
    if (errno == EXDEV) throw refuse(ErrorCode::kPathEscape, "leads outside the folder");
    if (errno == ELOOP) throw refuse(ErrorCode::kPath, "is a loop of links");
    if (errno == ENAMETOOLONG) throw refuse(ErrorCode::kPath, "is too long for this file system");
    throw_errno(folder + "/" + escape(relative_path));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) == 0 && S_ISDIR(info.st_mode))
    throw refuse(ErrorCode::kPath, "is a folder");
  return std::make_shared<File>(std::move(fd), escape((path_ / relative_path).native()));
}

std::shared_ptr<File> Directory::open_member(const std::string& relative_path) const {
  auto file = open_member_if_present(relative_path);
  if (!file) {
    throw Error(ErrorCode::kShardMissing,
                escape((path_ / relative_path).native()) + ": no such file");
  }
  return file;
}

std::vector<std::string> Directory::list() const {
  std::vector<std::string> names =
      stored_ ? stored_->names() : names_in(fd_.get(), escape(path_.native()));
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return natural_less(a, b); });
  return names;
}

bool Directory::is_directory(const std::string& name) const {
  if (stored_) return stored_->is_folder(name);
  struct stat info {};
  if (::fstatat(fd_.get(), name.c_str(), &info, 0) == 0) return S_ISDIR(info.st_mode);
  // A link that leads nowhere is not a folder.
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG ||
      errno == EACCES) {
    return false;
  }
  throw_errno(escape((path_ / name).native()));
}

std::vector<std::string> Directory::list_files() const {
  if (stored_) return stored_->files(kMaxListedFiles, kMaxFolderDepth);
  std::vector<std::string> files;
  const std::function<void(int, const std::string&, int)> walk =
      [&](int folder, const std::string& prefix, int depth) {
        const std::string shown = escape((path_ / prefix).native());
        if (depth > kMaxFolderDepth) {
          throw Error(ErrorCode::kLimitDepth,
                      cat(shown, ": lies more than ", kMaxFolderDepth, " folders deep"));
        }
        for (const std::string& name : names_in(folder, shown)) {
          struct stat info {};
          if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) continue;
            throw_errno(cat(shown, ": ", quote(name)));
          }
          if (S_ISDIR(info.st_mode)) {
            walk(open_folder_in(folder, name, shown).get(), prefix + name + "/", depth + 1);
            continue;
          }
          if (files.size() == kMaxListedFiles) {
            throw Error(ErrorCode::kLimitEntries, cat(escape(path_.native()), ": holds more than ",
                                                      kMaxListedFiles, " files"));
          }
          files.push_back(prefix + name);
        }
      };
  walk(fd_.get(), "", 0);
  std::sort(files.begin(), files.end());
  return files;
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
