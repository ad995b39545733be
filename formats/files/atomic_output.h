// SPDX-License-Identifier: Apache-2.0
// Outputs that appear whole or not at all: a temporary name beside the destination, fsync, rename,
// fsync of the folder.
//
// Whatever moment the process is killed or the power fails at, the destination is what it was or
// the new one, complete.  What a killed run leaves is one temporary name, which no reader takes for
// a checkpoint and which the next run of the same destination removes.
// atomic_file.h and atomic_directory.h have them; here is what they share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "formats/files/checkpoint_names.h"

namespace fsdp::formats {

struct OutputOptions {
  bool replace = false;  // an existing destination is replaced, else kExists
  bool sync =
      true;  // fsync files and folder, so that what was reported as done survives a power cut
  bool seal = false;  // leave a seal with it (seal.h), made of the checksums of what is written
  // Called by `commit` with the path of the finished temporary, before anything is renamed: what it
  // throws leaves the destination as it was.
  std::function<void(const std::filesystem::path& temporary)> before_commit = {};
  // Missing folders above the destination are made, and removed again unless it is committed.
  bool make_folders = false;
  // Says of a name whether replacing a folder may remove that file; any other file forbids it.
  std::function<bool(std::string_view name)> replaced = is_member_name;
};

// Removes the temporaries of every output that is being written, for a process that is about to end
// without returning to whoever writes them.  Afterwards nothing is committed any more: who tries
// waits for that end.
void abandon_outputs() noexcept;

// How many outputs of this process have come into their places.
std::uint64_t outputs_committed() noexcept;

// Free bytes for this user on the file system that holds `folder`.  Throws: kIo, kNotFound.
std::uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace fsdp::formats
