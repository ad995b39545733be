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

}  // namespace fsdp::formats
