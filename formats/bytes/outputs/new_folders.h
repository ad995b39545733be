// SPDX-License-Identifier: Apache-2.0
// Makes the missing folders above an output.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// The folders that were made for one output.  They are removed again, unless the output is
// committed (`keep`); a folder that is no longer empty stays.
class NewFolders : NotCopied {
 public:
  NewFolders() = default;
  // Makes every missing folder above `destination`.  The temporary of an output may stand in the
  // innermost one, so an object of this class outlives it.
  // Throws: kIo and the other codes of throw_errno, naming the folder; no new folder is left then.
  explicit NewFolders(const std::filesystem::path& destination);
  ~NewFolders() { remove(); }

  // Makes the names of the new folders durable.  Throws: kIo.
  void sync() const;
  // Keeps the folders from now on.
  void keep() noexcept { made_.clear(); }
  // Removes the new folders that are empty.  Uses no memory and takes no lock.
  void remove() noexcept;

 private:
  std::vector<std::string> made_;  // outermost first
};

// Returns the innermost folder above `destination` that exists: its bytes will lie there.
std::filesystem::path existing_folder_above(const std::filesystem::path& destination);

// Returns the free bytes for this user on the file system that holds `folder`.
// Throws: kIo, kNotFound.
std::uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace fsdp::formats
