// SPDX-License-Identifier: Apache-2.0
// Reads files and folders of this machine.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/file_descriptor.h"
#include "formats/bytes/store/file.h"

namespace fsdp::formats {

// A regular file, read with pread: if the file is truncated meanwhile, this gives an error, whereas
// a mapping would kill the process.
class LocalFile : public File {
 public:
  // `name`: for messages.  Throws: kNotRegular, kIo.
  LocalFile(FileDescriptor fd, std::string name);
  std::uint64_t size() const override { return size_; }
  // Throws: kChanged if the file ends before the size it had when it was opened, kIo.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  void read_run(std::uint64_t offset, std::span<std::byte> out, std::uint64_t end,
                RunWindow& window) const override;
  bool will_read(std::uint64_t offset, std::uint64_t count) const noexcept override;
  // Does nothing: the kernel reads ahead by itself.
  bool read_ahead(std::uint64_t, std::uint64_t) const noexcept override { return false; }
  // Compares size and modification time.
  void check_unchanged() const override;
  std::pair<std::uint64_t, std::uint64_t> identity() const override { return {device_, inode_}; }
  std::int64_t mtime_ns() const override { return mtime_ns_; }
  int fd() const override { return fd_.get(); }

 private:
  FileDescriptor fd_;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

// A folder whose members the kernel opens beneath it (openat2).
class LocalFolder : public Folder {
 public:
  // Throws: kNotFound, kIo.
  explicit LocalFolder(const std::filesystem::path& path);
  bool is_folder(const std::string& name) const override;
  bool read_by_requests() const override { return false; }

 private:
  std::shared_ptr<const File> find(const std::string& relative_path) const override;
  std::vector<std::string> names() const override;
  void each_file(const std::function<void(std::string path)>& take) const override;

  FileDescriptor fd_;
};

// A file without a name for data that do not fit in memory; it disappears with the process.  Grows
// by `append`.
class SpillFile : public ByteSource {
 public:
  // Makes the file in $TMPDIR, else in /tmp.  Throws: kIo.
  SpillFile();
  std::uint64_t size() const override;
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  // Writes at the end.  Throws: kIo, kNoSpace.
  void append(std::span<const std::byte> bytes);

 private:
  FileDescriptor fd_;
  std::uint64_t size_ = 0;
};

// Returns whether `name` can be that of a member of a folder: without a slash, neither "." nor
// "..".
bool is_plain_name(std::string_view name) noexcept;

// Returns the names in an open folder, sorted, without "." and "..".  Throws: kIo.
std::vector<std::string> names_in(int folder, const std::string& shown);

// Opens a folder inside an open folder, without following links.  Throws: kIo.
FileDescriptor open_folder_in(int folder, const std::string& name, const std::string& shown);

// Throws errno as an Error, "path: No such file or directory": kNotFound for ENOENT and ENOTDIR;
// kNoSpace for ENOSPC, EDQUOT and EFBIG; kOutOfMemory for ENOMEM; else kIo.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace fsdp::formats
