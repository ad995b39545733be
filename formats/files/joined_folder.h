// SPDX-License-Identifier: Apache-2.0
// A folder that another process is about to put into place (AtomicDirectory), joined in order to
// add files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "formats/files/atomic_directory.h"
#include "formats/files/file.h"

namespace fsdp::formats {

// Note [joining a folder]
// The temporary name of a destination is the same for every writer, so a late process could find
// the folder of a later job there; inode numbers do not help, because they are reused.  So the
// folder's owner puts an empty file with a random name into it, tells the others the name, and
// removes the file when it commits: a folder that holds it is the right one.  It is held open from
// then on, and files are made in the open folder, whatever its name is by then.
class JoinedFolder {
 public:
  // `invitation` is the result of AtomicDirectory::invitation; `destination` is the same folder as
  // there, by this process's own path to it.
  // Throws: kNotFound if there is no such folder, or it is another one; like AtomicDirectory for
  // the destination.
  JoinedFolder(const std::filesystem::path& destination, const std::string& invitation);

  // Adds a new file of that plain name, which the caller finishes.  `synced`, `summed`: see
  // OutputFile.
  // Throws: kPath, kExists, kIo, kNoSpace.
  std::unique_ptr<OutputFile> add_file(const std::string& name, bool synced,
                                       bool summed = false) const;

 private:
  FileDescriptor folder_;
  std::string shown_;
};

}  // namespace fsdp::formats
