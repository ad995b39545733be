// SPDX-License-Identifier: Apache-2.0
// Opens files and folders for reading, wherever they lie.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/store/file.h"

namespace fsdp::formats {

// `path`: a path, or the URL of a store.  Messages begin with it.
// Throws: kNotFound, kNotRegular, kIo, what stores throw.
std::shared_ptr<const File> file_at(const std::filesystem::path& path);
// The same for a folder; in a store one without members is empty.  Throws: kNotFound, kIo.
std::shared_ptr<const Folder> folder_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
