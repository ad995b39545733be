// SPDX-License-Identifier: Apache-2.0
// Files opened for reading, and folders whose members cannot lead outside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/byte_source.h"

namespace fsdp::formats {

class StoredSource;

// An open descriptor, closed with it.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  void reset();
  // Returns the descriptor, which the caller then has to close.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A regular file, read with pread: a file that is truncated meanwhile gives an error, whereas a
// mapping would kill the process.  Or a file of a store, which has no descriptor.
class File : public ByteSource {
 public:
  // A path or the URL of a store.  Throws: kNotFound, kNotRegular, kIo, what stores throw. Messages
  // begin with the path.
  static std::shared_ptr<File> open(const std::filesystem::path& path);
  // A file of a store.
  explicit File(std::shared_ptr<const StoredSource> stored);
  // An open regular file.  `name` stands in messages.
  File(FileDescriptor fd, std::string name);

  std::uint64_t size() const override { return size_; }
  // Throws: kChanged if the file ends before the size it had when it was opened, kIo.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  void read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                RunWindow& window) const override;
  // Hint: these few bytes will be read soon, perhaps more than once, so they may be fetched.
  // Returns as read_ahead does.
  bool will_read(std::uint64_t offset, std::uint64_t count) const noexcept;
  // Hint: all of these bytes will be read soon, in the order of such hints.  Without effect for a
  // file of this machine, whose kernel notices by itself.  Returns whether more hints are worth
  // giving before a read follows.
  bool read_ahead(std::uint64_t offset, std::uint64_t count) const noexcept;
  // Unique for each File in this process.
  std::uint64_t number() const { return number_; }
  // Device and inode: the same for every open descriptor of one file, under any name.  Of a file of
  // a store: numbers that stand for its URL and version.
  std::pair<std::uint64_t, std::uint64_t> identity() const { return {device_, inode_}; }
  // The path or name under which it was opened, escaped, for messages.
  const std::string& name() const { return name_; }
  // -1: a file of a store.
  int fd() const { return fd_.get(); }
  // Returns whether it is a file of a store.
  bool stored() const { return stored_ != nullptr; }
  // Modification time when it was opened, in nanoseconds since the epoch; 0: not known.
  std::int64_t mtime_ns() const { return mtime_ns_; }
  // Throws: kChanged if size or modification time have changed since it was opened.  Of a file of a
  // store: see StoredSource.
  void check_unchanged() const;

 private:
  FileDescriptor fd_;
  std::shared_ptr<const StoredSource> stored_;
  std::string name_;
  std::uint64_t number_;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

class StoredFolder;

// A folder held open, so that its members are those of one folder even if paths are renamed
// meanwhile.  Of a store: its members are those of the moment at which they were first asked for.
class Directory {
 public:
  // A path or the URL of a store, where a folder without members is empty.
  // Throws: kNotFound, kIo.
  static Directory open(const std::filesystem::path& path);

  // Opens a member by a relative path that came from a file.  Absolute paths, "..", and links that
  // lead out of the folder are refused by the kernel (openat2); in a store, where every name is
  // possible, "..", and parts without a name are. Throws: kPath (empty, NUL, too long, a folder),
  // kPathEscape, kShardMissing, kNotRegular, kIo, what stores throw.
  std::shared_ptr<File> open_member(const std::string& relative_path) const;
  // Like open_member, but returns nullptr if there is none of that name.
  std::shared_ptr<File> open_member_if_present(const std::string& relative_path) const;

  // Names of the members, sorted in natural order, "." and ".." left out.  Of a store that cannot
  // list: those of the files that tell what a folder holds.
  // Throws: kUnsupported if such a store has none of these.
  std::vector<std::string> list() const;
  bool is_directory(const std::string& name) const;
  // Everything in the folder and its subfolders that is not a folder, by relative path ("a",
  // "b/c"), sorted; links are not followed. Throws: kIo; kLimitEntries (more than a million);
  // kLimitDepth (folders more than 16 deep); kUnsupported (a store that cannot list).
  std::vector<std::string> list_files() const;
  const std::filesystem::path& path() const { return path_; }
  // Returns whether it is a folder of a store.
  bool stored() const { return stored_ != nullptr; }

 private:
  Directory(FileDescriptor fd, std::filesystem::path path)
      : fd_(std::move(fd)), path_(std::move(path)) {}
  FileDescriptor fd_;
  std::shared_ptr<StoredFolder> stored_;  // instead of a descriptor
  std::filesystem::path path_;
};

// A file without a name for data that do not fit in memory; it disappears with the process.  Grows
// by `append`.
class SpillFile : public ByteSource {
 public:
  // In $TMPDIR, else /tmp.  Throws: kIo.
  SpillFile();
  std::uint64_t size() const override;
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  // Writes at the end.  Throws: kIo, kNoSpace.
  void append(std::span<const std::byte> bytes);

 private:
  FileDescriptor fd_;
  std::uint64_t size_ = 0;
};

// "path: No such file or directory" as an Error: kNotFound for ENOENT, kNoSpace for ENOSPC and
// EDQUOT, else kIo.  Reads errno.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace fsdp::formats
