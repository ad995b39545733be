// SPDX-License-Identifier: Apache-2.0
// Checks whether files that a folder shares with another folder were changed through that folder.
#pragma once

#include <filesystem>

#include "formats/state/model/finding.h"

namespace fsdp::formats {

// Compares the folder's files with its record of shared files (shared_files.h), if it has one.  A
// file that is still the linked one but was changed since is kSharedChanged.  A record that cannot
// be read is kSeal.  Copies of the files and missing files are ignored here.
Findings check_shared_files(const std::filesystem::path& folder);

}  // namespace fsdp::formats
