// SPDX-License-Identifier: Apache-2.0
// Files that readers are not to see: a folder is read as if it had lost them.
#pragma once

#include <filesystem>
#include <set>

namespace fsdp::formats {

// Hides files from this process, whose threads may look for them, as long as the object exists.
// Objects must not overlap.
class HiddenFiles {
 public:
  // `paths`: the folder's path, as it is opened, with the files' relative ones behind it.
  explicit HiddenFiles(std::set<std::filesystem::path> paths);
  HiddenFiles(const HiddenFiles&) = delete;
  HiddenFiles& operator=(const HiddenFiles&) = delete;
  ~HiddenFiles();

 private:
  std::set<std::filesystem::path> paths_;
};

// Returns whether the file is hidden.
bool is_hidden(const std::filesystem::path& path);

}  // namespace fsdp::formats
