// SPDX-License-Identifier: Apache-2.0
// Removes a checkpoint so that nobody ever finds half of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {

// One file or folder, as it was at one moment.
struct RemovableMember {
  std::string name;  // below the path; empty for the path itself
  bool is_folder = false;
  bool is_regular = false;  // a regular file
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;  // 0 for folders
  std::int64_t mtime_ns = 0;
  bool operator==(const RemovableMember&) const = default;
};

// Everything at a path and below it, links as they are; the path itself first.
using RemovableState = std::vector<RemovableMember>;

// Note [removing a checkpoint]
// A checkpoint is first renamed to ".NAME.fsdp-removed", which no list of checkpoints shows, and
// that name is made durable; only then are its files removed.  So a run that was killed, or lost
// power, leaves the whole checkpoint or a hidden rest, never half of it under its name.
//
// What is removed is what was looked at: every folder on the way is opened without following links,
// and the checkpoint goes only if nothing in it was written, added or replaced since its state was
// taken.  A writer that comes between loses nothing: what changed is renamed back.
class RunFolder {
 public:
  // Holds the folder open and locks it against another run of this kind, if the file system has
  // locks.
  // Throws: kNotFound, kIo, kBusy.
  explicit RunFolder(const std::filesystem::path& path);

  // Returns the state of a checkpoint, by its path below the run's folder ("deep/step-5").
  // Throws: kNotFound, kIo, kLimitEntries (more than a million members), kLimitDepth (folders more
  // than 16 deep).
  RemovableState state(const std::filesystem::path& below) const;
  // See Note [removing a checkpoint].  Returns without an error if the checkpoint is gone already.
  // Throws: kChanged if its state is not `state`: the checkpoint stays as it was; kExists if a file
  // is in the way; kIo, naming what is left.
  void remove(const std::filesystem::path& below, const RemovableState& state) const;
  // Returns what killed runs left in the folder that holds `below`, as paths below the run.
  // Throws: kIo.
  std::vector<std::filesystem::path> leftovers_beside(const std::filesystem::path& below) const;
  // Removes one of these leftovers.  Throws: kIo.
  void remove_leftover(const std::filesystem::path& leftover) const;

 private:
  FileDescriptor open_parent(const std::filesystem::path& below) const;
  std::string shown(const std::filesystem::path& below) const;

  std::filesystem::path path_;
  FileDescriptor fd_;
};

}  // namespace fsdp::formats
