// SPDX-License-Identifier: Apache-2.0
// Commits or removes the temporary of an output.  Only for atomic_file and atomic_folder.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/options.h"
#include "formats/bytes/outputs/place.h"
#include "formats/bytes/upload/unfinished.h"

namespace fsdp::formats {

// Calls `options.before_commit`, if there is one, with OutputPlace::path_of_temporary().
// Messages name the destination.
// Throws: what that throws; kIo for an error of the file system.
void look_before_commit(const OutputPlace& place, const OutputOptions& options);
// Does the same for the finished output at `written`, which messages call `shown`.
void look_before_commit(const std::filesystem::path& written, const std::string& shown,
                        const OutputOptions& options);

// Returns whether the last renameat2 failed because the file system or kernel does not know its
// flag.
bool flag_unsupported();

// Return kExists: something is at the destination, or it appeared there meanwhile.
Error already_exists(const OutputPlace& place);
Error appeared(const OutputPlace& place);
// Returns the error for `why`, which came when the output was in place and had no seal.
Error without_seal(ErrorCode code, std::string_view why, const std::string& shown);

// Renames the temporary to the destination if nothing exists there; returns false if something
// does.
// Throws: kIo.
bool rename_to_free_name(const OutputPlace& place, OutputKind kind);

// Calls fsync on the folder after a rename.  Throws: kIo saying that the new output is in place.
void sync_parent_after_rename(const OutputPlace& place);

}  // namespace fsdp::formats
