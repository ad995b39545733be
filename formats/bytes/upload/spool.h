// SPDX-License-Identifier: Apache-2.0
// Where the bytes of an output wait until a store has them.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace fsdp::formats {

// A folder of this process in $TMPDIR, else /tmp, that disappears with the object.  A process that
// is killed leaves it behind; the next one removes it.
//
// Its files are as long as those of the output, but hold few of their bytes: what was sent is given
// back to the file system, except for what the last look at the output reads (check_output_names).
class Spool {
 public:
  // Throws: kIo.
  Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  ~Spool() { remove(); }

  // Makes an empty file, "a" or "a/b", with the folders above it, and returns its path.  Throws:
  // kIo, kNoSpace.
  std::filesystem::path add(const std::string& name);
  // The folder.
  const std::filesystem::path& path() const { return path_; }
  // Removes it at once.
  void remove() noexcept;

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace fsdp::formats
