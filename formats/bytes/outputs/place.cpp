// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/place.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/upload/stored_output.h"

namespace fsdp::formats {
namespace {

// The number of times that the temporary may change under us before it counts as busy.  Each change
// comes from another writer.
constexpr int kMaxAttempts = 100;

bool same_inode(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

Error busy(const std::string& shown, const std::string& temporary) {
  return Error(ErrorCode::kBusy, shown, ": is being written by another process, which holds ",
               temporary);
}

}  // namespace

OutputPlace::OutputPlace(const std::filesystem::path& destination, OutputKind kind)
    : kind_(kind), shown_(escape(destination.native())) {
  std::string text = destination.native();
  if (text.empty()) throw Error(ErrorCode::kUsage, "the destination is empty");
  if (text.find('\0') != std::string::npos)
    throw Error(ErrorCode::kUsage, shown_ + ": contains a NUL byte");
  if (kind == OutputKind::kFolder) {
    while (text.size() > 1 && text.back() == '/') text.pop_back();
  }
  const std::size_t slash = text.rfind('/');
  name_ = text.substr(slash + 1);  // npos + 1 is 0
  if (name_.empty() || name_ == "." || name_ == "..") {
    throw Error(
        ErrorCode::kUsage,
        shown_ + (kind == OutputKind::kFile ? ": does not name a file"
                                            : ": does not name a folder that could be created"));
  }
  temporary_ = temporary_of(name_);
  folder_ = slash == std::string::npos ? "." : text.substr(0, slash + 1);
  parent_ = FileDescriptor(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent_.get() < 0) throw_errno(cat(shown_, ": folder ", quote(folder_, 4096)));
}

std::string OutputPlace::shown_temporary() const {
  return quote(temporary_, 4096) + " beside it";
}

std::filesystem::path OutputPlace::path_of_temporary() const {
  struct stat opened {};
  if (::fstat(parent_.get(), &opened) != 0) throw_errno(shown_);
  for (const std::string& folder : {cat("/proc/self/fd/", parent_.get()), folder_}) {
    struct stat named {};
    if (::stat(folder.c_str(), &named) == 0 && same_inode(named, opened))
      return std::filesystem::path(folder) / temporary_;
  }
  throw Error(ErrorCode::kIo,
              shown_ + ": its folder was moved, and without /proc the output cannot be read back");
}

std::optional<struct stat> OutputPlace::existing() const {
  struct stat info {};
  if (::fstatat(parent_.get(), name_.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return info;
  if (errno == ENOENT) return std::nullopt;
  throw_errno(shown_);
}

bool OutputPlace::stands_for(const std::string& name, int fd) const {
  struct stat named {};
  struct stat opened {};
  return ::fstatat(parent_.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(fd, &opened) == 0 && same_inode(named, opened);
}

int OutputPlace::unlink_temporary() const noexcept {
  return ::unlinkat(parent_.get(), temporary_.c_str(),
                    kind_ == OutputKind::kFolder ? AT_REMOVEDIR : 0);
}

FileDescriptor OutputPlace::create() const {
  if (kind_ == OutputKind::kFile)
    return open_for_output(parent_.get(), temporary_, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (::mkdirat(parent_.get(), temporary_.c_str(), 0777) != 0) return FileDescriptor();
  FileDescriptor fd =
      open_for_output(parent_.get(), temporary_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (fd.get() < 0 && errno != ENOENT && errno != EEXIST) {
    // Made, but could not be opened: do not leave even an empty folder behind.
    const int number = errno;
    unlink_temporary();
    errno = number;
  }
  return fd;
}

FileDescriptor OutputPlace::claim(const std::function<bool(int)>& keeps) const {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    FileDescriptor fd = create();
    if (fd.get() < 0) {
      if (errno == ENOENT)
        continue;  // another writer took our new folder for a leftover before it was locked
      if (errno != EEXIST) throw_errno(cat(shown_, ": ", shown_temporary()));
      FileDescriptor kept = take_leftover(keeps);
      if (kept.get() >= 0) return kept;
      continue;
    }
    // A file system without locks: creating the name is the claim, see `take_leftover`.
    Locked locked = Locked::kUnsupported;
    try {
      locked = try_lock(fd.get(), shown_);
      // A run that was killed after it put its output into place leaves its journals.
      if (locked != Locked::kBusy && stands_for(temporary_, fd.get())) remove_journals();
    } catch (...) {  // also without memory for a name
      if (stands_for(temporary_, fd.get())) unlink_temporary();
      throw;
    }
    if (locked == Locked::kBusy) throw busy(shown_, shown_temporary());
    if (stands_for(temporary_, fd.get())) return fd;
  }
  throw busy(shown_, shown_temporary());
}

void OutputPlace::remove_journals() const {
  const FileDescriptor folder =
      open_for_output(parent_.get(), journals(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  const std::string shown = cat(shown_, ": ", quote(journals(), 4096), " beside it");
  if (folder.get() < 0) {
    if (errno == ENOENT) return;
    throw_errno(shown);
  }
  remove_files_in(folder.get(), shown);
  if (::unlinkat(parent_.get(), journals().c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    throw_errno(shown + ": removing");
}

// Returns the leftover, locked, if it is kept, else none.
FileDescriptor OutputPlace::take_leftover(const std::function<bool(int)>& keeps) const {
  const int flags = kind_ == OutputKind::kFile ? O_RDWR | O_NONBLOCK : O_RDONLY | O_DIRECTORY;
  FileDescriptor fd = open_for_output(parent_.get(), temporary_, flags | O_NOFOLLOW, 0);
  struct stat info {};
  const bool opened = fd.get() >= 0 && ::fstat(fd.get(), &info) == 0;
  if (!opened && errno == ENOENT) return FileDescriptor();
  if (opened ? kind_ == OutputKind::kFile && !S_ISREG(info.st_mode)
             : errno == ELOOP || errno == ENOTDIR || errno == EISDIR) {
    throw Error(ErrorCode::kNotRegular, shown_, ": ", shown_temporary(),
                " is in the way; remove it");
  }
  if (!opened) throw_errno(cat(shown_, ": ", shown_temporary()));
  const Locked locked = try_lock(fd.get(), shown_);
  if (locked == Locked::kUnsupported) {
    throw Error(ErrorCode::kBusy, shown_, ": ", shown_temporary(),
                " exists, and this file system has no locks to tell whether "
                "it is being written; remove it if no process writes it");
  }
  if (locked == Locked::kBusy) throw busy(shown_, shown_temporary());
  if (!stands_for(temporary_, fd.get())) return FileDescriptor();
  if (keeps && keeps(fd.get())) return fd;
  remove_journals();  // Before the leftover that they describe.
  if (kind_ == OutputKind::kFolder) remove_files_in(fd.get(), cat(shown_, ": ", shown_temporary()));
  if (unlink_temporary() != 0 && errno != ENOENT)
    throw_errno(cat(shown_, ": removing ", shown_temporary()));
  return FileDescriptor();
}

void OutputPlace::sync_parent() const {
  sync_folder(parent_.get(), shown_ + ": fsync of its folder");
}

void sync_folder(int folder, const std::string& what) {
  // Some network file systems cannot fsync a folder and say EINVAL; such a file system has nothing
  // to lose.
  if (::fsync(folder) != 0 && errno != EINVAL) throw_errno(what);
}

Locked try_lock(int fd, const std::string& shown) {
  for (;;) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Locked::kYes;
    switch (errno) {
      case EINTR:
        continue;
      case EWOULDBLOCK:
        return Locked::kBusy;
      // Lustre without its flock option, FUSE, folders on NFS.
      case ENOSYS:
      case EOPNOTSUPP:
      case ENOLCK:
      case EBADF:
      case EINVAL:
        return Locked::kUnsupported;
      default:
        throw_errno(shown + ": flock");
    }
  }
}

void remove_files_in(int folder, const std::string& shown) {
  struct Member {
    int folder;
    std::string path;  // from the outermost folder
    std::string name;
    int flags;  // of unlinkat
  };
  std::vector<Member> members;
  std::vector<FileDescriptor> folders;
  const auto add = [&](int in, const std::string& above) {
    const bool deepest = std::ranges::count(above, '/') == kMaxInnerFolders;
    for (const std::string& name : names_in(in, shown)) {
      struct stat info {};
      if (::fstatat(in, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;
        throw_errno(cat(shown, ": ", quote(above + name)));
      }
      const bool inner = S_ISDIR(info.st_mode) && !deepest;
      if (!S_ISREG(info.st_mode) && !inner) {
        throw Error(ErrorCode::kExists, shown, " holds ", quote(above + name),
                    ", which is not a regular file; remove it");
      }
      members.push_back({in, above + name, name, inner ? AT_REMOVEDIR : 0});
    }
  };
  add(folder, "");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].flags == 0) continue;
    folders.push_back(open_folder_in(members[i].folder, members[i].name, shown));
    const std::string path = members[i].path + "/";
    add(folders.back().get(), path);
  }
  // Members of a folder are listed after the folder.
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (::unlinkat(member->folder, member->name.c_str(), member->flags) != 0 && errno != ENOENT)
      throw_errno(cat(shown, ": removing ", quote(member->name)));
  }
}

FileDescriptor open_for_output(int folder, const std::string& name, int flags,
                               mode_t mode) noexcept {
  FileDescriptor fd(::openat(folder, name.c_str(), flags | O_CLOEXEC, mode));
  if (fd.get() < 0 || fd.get() > STDERR_FILENO) return fd;
  return FileDescriptor(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

FileDescriptor create_for_output(int folder, const std::string& name, const std::string& shown) {
  FileDescriptor fd = open_for_output(folder, name, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (fd.get() >= 0) return fd;
  if (errno == EEXIST) throw Error(ErrorCode::kExists, shown + ": is written twice");
  throw_errno(shown);
}

}  // namespace fsdp::formats
