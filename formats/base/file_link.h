// SPDX-License-Identifier: Apache-2.0
// Gives a file that is open a second name, sharing its bytes on disk where the file systems allow
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "formats/base/file.h"

namespace fsdp::formats {

// How the bytes of the new name and of the source are related on disk.
enum class Sharing {
  kHardLink,  // one file with two names: whoever writes into one changes both
  kReflink,   // shared until one of them is written to
  kCopy       // nothing is shared
};

struct SharingOptions {
  bool hard_link = true;  // else a reflink is the most that is tried
  bool sync = true;       // fsync, so that the new file survives a power cut
  std::function<void(std::uint64_t)> on_copied = {};  // bytes copied since the last call
};

// Whether hard links to `source` are to be expected in `folder`: both are on one file system.
// Throws: kIo, kNotFound.
bool on_one_file_system(const File& source, const std::filesystem::path& folder);

// Makes `name` in the open folder a file with the bytes of `source`: a hard link; where that cannot
// be (another file system, links forbidden or used up) a reflink; else a copy through a buffer of
// 4 MiB.  The link is to the inode that is open, whatever its name stands for now.  `shown` stands
// in messages.
// Throws: kExists (the name is taken), kChanged (the source got shorter), kInterrupted, kNoSpace,
// kIo.
Sharing share_file(const File& source, int folder, const std::string& name,
                   const std::string& shown, const SharingOptions& options);

}  // namespace fsdp::formats
