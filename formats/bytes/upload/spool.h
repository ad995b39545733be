// SPDX-License-Identifier: Apache-2.0
// Holds the bytes of an output until a store has them.
#pragma once

#include <filesystem>
#include <string>

#include "formats/bytes/base/file_descriptor.h"
#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// A folder of this process in $TMPDIR, else /tmp, that disappears with the object.  A process that
// is killed leaves its folder behind; the next one removes it.
//
// Its files are as long as those of the output, but hold few of their bytes: sent bytes are given
// back to the file system, except those that the last check of the output reads
// (check_output_names).
class Spool : NotCopied {
 public:
  // Throws: kIo.
  Spool();
  ~Spool() { remove(); }

  // Makes an empty file, "a" or "a/b", with its parent folders, and returns its path.  Throws: kIo,
  // kNoSpace.
  std::filesystem::path add(const std::string& name);
  const std::filesystem::path& path() const { return path_; }
  // Removes the folder at once.
  void remove() noexcept;

 private:
  std::filesystem::path path_;
  FileDescriptor lock_;
};

}  // namespace fsdp::formats
