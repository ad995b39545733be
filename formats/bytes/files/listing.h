// SPDX-License-Identifier: Apache-2.0
// A folder and the names in it, listed once for everything that asks for them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/file.h"

namespace fsdp::formats {

struct Listing {
  // Throws: what folder_at and Folder::list throw.
  explicit Listing(const std::filesystem::path& path)
      : folder(folder_at(path)), names(folder->list()) {}

  const std::filesystem::path& path() const { return folder->path(); }
  bool has(std::string_view name) const { return std::ranges::find(names, name) != names.end(); }
  // Returns whether `test` is true for one of the names.
  template <typename Test>
  bool any(const Test& test) const {
    return std::ranges::any_of(names, test);
  }

  std::shared_ptr<const Folder> folder;
  std::vector<std::string> names;  // in natural order
};

}  // namespace fsdp::formats
