// SPDX-License-Identifier: Apache-2.0
// Files and folders for reading, wherever they lie: files/local_file.h has those of this machine,
// stored_source.h and stored_folder.h those of stores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// One regular file, open.  Thread-safe.
class File : public ByteSource {
 public:
  // Hint: these few bytes will be read soon, perhaps more than once, so they may be fetched.
  // Returns as read_ahead does.
  virtual bool will_read(std::uint64_t offset, std::uint64_t count) const noexcept = 0;
  // Hint: all of these bytes will be read soon, in the order of such hints.  Returns whether more
  // hints are worth giving before a read follows.
  virtual bool read_ahead(std::uint64_t offset, std::uint64_t count) const noexcept = 0;
  // Throws: kChanged if the file was written to since it was opened.
  virtual void check_unchanged() const = 0;
  // Returns two numbers that are equal for all open files with the same content, under any name:
  // device and inode, or numbers that stand for a URL and a version.
  virtual std::pair<std::uint64_t, std::uint64_t> identity() const = 0;
  // Returns the modification time when the file was opened, in nanoseconds since the epoch; 0:
  // unknown.
  virtual std::int64_t mtime_ns() const = 0;
  // Returns the descriptor of a local file; -1 for other files.
  virtual int fd() const = 0;
  // Returns whether each read is a request, so that hints save time.
  bool read_by_requests() const { return fd() < 0; }
  // Returns a number that is unique for each File in this process.
  std::uint64_t number() const { return number_; }
  // Returns the escaped path or name under which the file was opened, for messages.
  const std::string& name() const { return name_; }

 protected:
  explicit File(std::string name);
  // Throws kTruncated unless the file has these bytes.
  void check_range(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string name_;
  std::uint64_t number_;
};

// An open folder.  Its members are those of one moment, or stay those of this folder even if paths
// are renamed.  No member lies outside of the folder.  Thread-safe.
class Folder : public Interface {
 public:
  // Opens a member by a relative path that came from a file.
  // Throws: kPath (empty, NUL, too long, a folder), kPathEscape (absolute, "..", a link that leads
  // out of the folder), kShardMissing, kNotRegular, kIo, what stores throw.
  std::shared_ptr<const File> open_member(const std::string& relative_path) const;
  // Like open_member, but returns nullptr if there is no member of that name.
  std::shared_ptr<const File> open_member_if_present(const std::string& relative_path) const;

  // Returns the names of the members in natural order, without "." and "..".  For a store that
  // cannot list: the names of the existing files that tell what a folder holds.
  // Throws: kIo; kUnsupported if such a store has no such file.
  std::vector<std::string> list() const;
  // Returns whether the member `name` is a folder.  Throws: kIo.
  virtual bool is_folder(const std::string& name) const = 0;
  // Returns everything in the folder and its subfolders that is not a folder, by relative path
  // ("a", "b/c"), sorted; links are not followed. Throws: kIo; kLimitEntries (more than a million);
  // kLimitDepth (folders more than 16 deep); kUnsupported (a store that cannot list).
  std::vector<std::string> list_files() const;
  const std::filesystem::path& path() const { return path_; }
  // See File::read_by_requests.
  virtual bool read_by_requests() const = 0;

 protected:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}
  Error refusal(ErrorCode code, const std::string& relative_path, std::string_view why) const;
  // Throws kLimitDepth.  `prefix`: the relative path of a folder.
  void check_depth(const std::string& prefix, int depth) const;

 private:
  // Returns nullptr if there is no such file.  `relative_path`: neither empty nor too long.
  virtual std::shared_ptr<const File> find(const std::string& relative_path) const = 0;
  virtual std::vector<std::string> names() const = 0;
  // Calls `take` with the relative path of every file in the folder and its subfolders.
  virtual void each_file(const std::function<void(std::string path)>& take) const = 0;

  std::filesystem::path path_;
};

}  // namespace fsdp::formats
