// SPDX-License-Identifier: Apache-2.0
// Gives a file that is open a second name, sharing its bytes on disk if the file systems allow it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "formats/bytes/files/file.h"

namespace fsdp::formats {

class OutputFile;

// The relation between the bytes of the new name and of the source on disk.
enum class Sharing {
  kHardLink,  // one file with two names: a write into one changes both
  kReflink,   // shared until one of them is written to
  kCopy       // nothing is shared
};

struct SharingOptions {
  bool hard_link = true;  // if there are no reflinks; false: a copy
  bool sync = true;       // fsync, so that the new file survives a power cut
  std::function<void(std::uint64_t)> on_copied = {};  // bytes copied since the last call
  std::uint32_t* copied_crc = nullptr;                // optional: CRC-32 of a copy
};

// Returns whether files of this file system can share their bytes until one is written to, judging
// by its type: `folder` lies on Btrfs, XFS or bcachefs.
// Throws: kIo, kNotFound.
bool may_reflink(const std::filesystem::path& folder);

// Returns whether hard links to `source` in `folder` are likely to work: both are on one file
// system.  Throws: kIo, kNotFound.
bool on_one_file_system(const File& source, const std::filesystem::path& folder);

// Reads the whole file and returns its CRC-32.  Throws: kChanged (the file got shorter),
// kInterrupted, kIo.
std::uint32_t crc_of(const File& file);

// Copies the whole file through a buffer of 4 MiB.
// Throws: kChanged (the source got shorter), kInterrupted, kNoSpace, kIo.
void copy_bytes(const File& source, OutputFile& out, const SharingOptions& options);

// Makes `name` in the open folder a file with the bytes of `source`: a reflink; if the file system
// has none, a hard link; if that is not possible (another file system, a store, links forbidden or
// used up) a copy (copy_bytes).  The link is to the inode that is open, whatever its
// name refers to now.  `shown` is for messages.
// Throws: kExists (the name is taken), kChanged (the source got shorter), kInterrupted, kNoSpace,
// kIo.
Sharing share_file(const File& source, int folder, const std::string& name,
                   const std::string& shown, const SharingOptions& options);

}  // namespace fsdp::formats
