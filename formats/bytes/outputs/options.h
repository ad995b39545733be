// SPDX-License-Identifier: Apache-2.0
// Outputs that appear whole or not at all: a temporary name beside the destination, fsync, rename,
// fsync of the folder.
//
// Whenever the process is killed or the power fails, the destination is either unchanged or the
// complete new one.  A killed run leaves one temporary name, which no reader takes for a checkpoint
// and which the next run with the same destination removes.
// The classes are in atomic_file.h and atomic_folder.h; this file has their common part.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/outputs/journal.h"

namespace fsdp::formats {

struct OutputOptions {
  bool replace = false;  // replace an existing destination; else kExists
  bool sync = true;      // fsync files and folder, so that finished outputs survive a power cut
  bool seal = false;  // leave a seal with it (seal.h), made of the checksums of the bytes written
  // Called by `commit` with the path of the finished temporary, before anything is renamed: if it
  // throws, the destination stays as it was.
  std::function<void(const std::filesystem::path& temporary)> before_commit = {};
  // Make missing folders above the destination; remove them again unless the output is committed.
  bool make_folders = false;
  // Returns whether replacing a folder may remove the file of that name; any other file forbids it.
  std::function<bool(std::string_view name)> replaced = is_member_name;
  // Write the output together with these processes (joined.h); never null.
  Team* team = &this_process();
  std::shared_ptr<Journal> journal = no_journal();  // never null
};

}  // namespace fsdp::formats
