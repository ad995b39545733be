// SPDX-License-Identifier: Apache-2.0
// Places of files and folders: paths of this machine, and URLs of stores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Returns whether the path is a URL of a registered store.
bool in_store(const std::filesystem::path& path);
// Returns the URL without slashes at its end: "s3://bucket/a/" is "s3://bucket/a".
std::string url_of(const std::filesystem::path& path);
// Returns the folder that a file or folder lies in: "." if the path is a bare name.  The root of a
// store ("s3://bucket") is its own folder.
std::filesystem::path folder_of_place(const std::filesystem::path& path);
// Returns the last part of a path: of "runs/step-4/", "." and "s3://bucket/step-4/" the folder's
// own name.
std::string name_of_place(const std::filesystem::path& path);

enum class PlaceKind { kNothing, kFile, kFolder, kOther };

// Returns what is at the path; links are followed.  kNothing also if a parent is not a folder.
// Throws: kIo if that cannot be determined; what stores throw.
PlaceKind kind_of_place(const std::filesystem::path& path);
// As kind_of_place, but a link is kOther.
PlaceKind kind_of_place_itself(const std::filesystem::path& path);
// Throws: like kind_of_place.
bool is_folder(const std::filesystem::path& path);
bool is_regular(const std::filesystem::path& path);
// Returns whether a store has a file or a folder of that URL, by as few requests as possible.
// Requires: in_store.  Throws: what stores throw.
bool exists_in_store(const std::filesystem::path& path);
// Returns the size of a file; nothing if there is no file, or its size is unknown.
std::optional<std::uint64_t> bytes_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
