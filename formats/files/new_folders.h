// SPDX-License-Identifier: Apache-2.0
// Makes the folders above an output that are missing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::formats {

// The folders that were made for one output.  They are removed again, unless the output came into
// its place (`keep`); a folder that somebody else has put something into meanwhile stays.
class NewFolders {
 public:
  NewFolders() = default;
  // Makes every missing folder above `destination`.  The temporary of an output may stand in the
  // innermost one, so an object of this class outlives it.
  // Throws: kIo and what else throw_errno makes of errno, naming the folder; none is left then.
  explicit NewFolders(const std::filesystem::path& destination);
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders() { remove(); }

  // Makes the names of the new folders durable.  Throws: kIo.
  void sync() const;
  // The folders stay from now on.
  void keep() noexcept { made_.clear(); }
  // Removes those of them that are empty.  Uses no memory and takes no lock.
  void remove() noexcept;

 private:
  std::vector<std::string> made_;  // outermost first
};

// Returns the innermost folder above `destination` that exists: where its bytes will lie.
std::filesystem::path existing_folder_above(const std::filesystem::path& destination);

}  // namespace fsdp::formats
