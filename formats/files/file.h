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

// An open descriptor, closed with it.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  void reset();
  // The descriptor, which is the caller's to close from here on.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A regular file, read with pread: a file that someone truncates meanwhile gives an error, where a
// mapping would kill the process.
class File : public ByteSource {
 public:
  // Throws: kNotFound, kNotRegular, kIo.  Messages begin with the path.
  static std::shared_ptr<File> open(const std::filesystem::path& path);
  // An open regular file.  `name` stands in messages.
  File(FileDescriptor fd, std::string name);

  std::uint64_t size() const override { return size_; }
  // Throws: kChanged where the file ends before the size it had when it was opened, kIo.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  void read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                RunWindow& window) const override;
  // These bytes are going to be read soon: the disk may fetch them meanwhile.
  void will_read(std::uint64_t offset, std::uint64_t count) const noexcept;
  // Of every file that this process ever opened another one.
  std::uint64_t number() const { return number_; }
  // Device and inode: the same for every open descriptor of one file, whatever its names.
  std::pair<std::uint64_t, std::uint64_t> identity() const { return {device_, inode_}; }
  // The path or name it was opened under, escaped, for messages.
  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }
  // Modification time when it was opened, in nanoseconds since the epoch.
  std::int64_t mtime_ns() const { return mtime_ns_; }
  // Throws: kChanged where size or modification time are not what they were when it was opened.
  void check_unchanged() const;

 private:
  FileDescriptor fd_;
  std::string name_;
  std::uint64_t number_;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

// A folder held open, so that its members are those of one folder whatever is renamed meanwhile.
class Directory {
 public:
  // Throws: kNotFound, kIo.
  static Directory open(const std::filesystem::path& path);

  // Opens a member by a relative path that came from a file.  Absolute paths, "..", and links that
  // lead out of the folder are refused by the kernel (openat2). Throws: kPath (empty, NUL, too
  // long, a folder), kPathEscape, kShardMissing, kNotRegular, kIo.
  std::shared_ptr<File> open_member(const std::string& relative_path) const;
  // As open_member, nullptr where there is none of that name.
  std::shared_ptr<File> open_member_if_present(const std::string& relative_path) const;

  // Names of the members, sorted in natural order, "." and ".." left out.
  std::vector<std::string> list() const;
  bool is_directory(const std::string& name) const;
  // Everything in the folder and the folders in it that is no folder, by relative path ("a",
  // "b/c"), sorted; links are not followed. Throws: kIo; kLimitEntries (more than a million);
  // kLimitDepth (folders more than 16 deep).
  std::vector<std::string> list_files() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  Directory(FileDescriptor fd, std::filesystem::path path)
      : fd_(std::move(fd)), path_(std::move(path)) {}
  FileDescriptor fd_;
  std::filesystem::path path_;
};

// A file without a name for what does not fit in memory, gone with the process.  Grows by `append`.
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
