// SPDX-License-Identifier: Apache-2.0
// Opens files and folders for reading, wherever they lie.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/store/file.h"

namespace fsdp::formats {

// Opens a file.  `path`: a path, or the URL of a store; messages begin with it.
// Throws: kNotFound, kNotRegular, kIo, the errors of stores.
std::shared_ptr<const File> file_at(const std::filesystem::path& path);
// Opens a folder in the same way; in a store, a folder without members is empty.  Throws:
// kNotFound, kIo.
std::shared_ptr<const Folder> folder_at(const std::filesystem::path& path);

// Returns whether something exists at `path`, without following a link; false if a folder on the
// way may not be searched, or a name is too long.
// Throws: kIo, kOutOfMemory if that cannot be determined; the errors of stores.
bool exists_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
