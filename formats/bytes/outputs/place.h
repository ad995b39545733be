// SPDX-License-Identifier: Apache-2.0
// The place where an output will appear: its folder held open, its name, and a temporary name
// beside it that one writer at a time owns; and helpers for names in open folders.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {

enum class OutputKind { kFile, kFolder };

// Note [claiming a temporary name]
// The temporary's name follows from the destination's, so two writers of one destination meet
// there.  The holder of the flock of the inode *that the name refers to* owns the name: only the
// owner renames or removes it.  A lock is therefore valid only after a check that the name still
// refers to the locked inode.  The kernel drops the lock of a killed process, which makes its
// leftover recognisable.
class OutputPlace {
 public:
  // Throws: kUsage, kNotFound (no such folder), kIo.
  OutputPlace(const std::filesystem::path& destination, OutputKind kind);

  int parent() const { return parent_.get(); }
  const std::string& name() const { return name_; }
  const std::string& temporary() const { return temporary_; }
  OutputKind kind() const { return kind_; }
  // Returns the temporary's name for a destination of that name.
  static std::string temporary_of(const std::string& name) { return "." + name + ".fsdp-tmp"; }
  // Return the destination and the temporary for messages, escaped.
  const std::string& shown() const { return shown_; }
  std::string shown_temporary() const;
  // Returns a path of the temporary through its open folder, which stays valid if the folder is
  // renamed; where /proc is not mounted, one through the folder's path. Throws: kIo if, without
  // /proc, that path no longer leads to the open folder.
  std::filesystem::path path_of_temporary() const;

  // Returns the state of the file or folder at the destination, without following links; nothing if
  // there is none.
  // Throws: kIo.
  std::optional<struct stat> existing() const;

  // Returns the name of the folder of journals (journal/run_journal.h) beside the temporary.
  std::string journals() const { return "." + name_ + ".fsdp-journal"; }
  // Removes that folder.  Requires: the temporary is locked.  Throws: kExists, kIo.
  void remove_journals() const;

  // Creates the temporary, empty and locked, after it removes the leftover of a killed run with its
  // journals.  If `keeps` returns true for the locked leftover, returns the leftover instead.
  // See Note [claiming a temporary name].
  // Throws: kBusy, kExists (a leftover folder that holds more than files), kNotRegular, kIo,
  // kNoSpace.
  FileDescriptor claim(const std::function<bool(int temporary)>& keeps = {}) const;
  // Removes the temporary, a file or an empty folder, by its name; returns what unlinkat returns.
  int unlink_temporary() const noexcept;
  // Returns whether `name` in the destination's folder refers to the inode that `fd` is open on.
  bool stands_for(const std::string& name, int fd) const;

  // Makes the names of the destination's folder durable.  Throws: kIo.
  void sync_parent() const;

 private:
  FileDescriptor create() const;
  FileDescriptor take_leftover(const std::function<bool(int temporary)>& keeps) const;

  OutputKind kind_;
  FileDescriptor parent_;
  std::string folder_;  // the path that parent_ was opened by
  std::string name_;
  std::string temporary_;
  std::string shown_;
};

enum class Locked { kYes, kBusy, kUnsupported };
// Takes the exclusive lock of an open file or folder, or reports at once why not.  Throws: kIo.
Locked try_lock(int fd, const std::string& shown);

// Makes the names in a folder durable.  Throws: kIo with `what`.
void sync_folder(int folder, const std::string& what);

// Removes the regular files of an open folder, and its folders that hold nothing but regular files
// and such folders, kMaxInnerFolders deep; a name that is gone already is not an error.
// Throws: kExists naming a member that is neither, before anything is removed; kIo.
void remove_files_in(int folder, const std::string& shown);

// Opens for an output; a descriptor is never 0, 1 or 2, so that a stray message of this process is
// not written into the file.  Does not throw: the caller checks the descriptor and errno.
FileDescriptor open_for_output(int folder, const std::string& name, int flags,
                               mode_t mode) noexcept;

// Makes a new file for reading and writing.  Throws: kExists ("is written twice"), kIo, kNoSpace.
FileDescriptor create_for_output(int folder, const std::string& name, const std::string& shown);

}  // namespace fsdp::formats
