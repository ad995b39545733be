// SPDX-License-Identifier: Apache-2.0
// Outputs that appear whole or not at all: a temporary name beside the destination, fsync, rename,
// fsync of the folder.
//
// Whenever the process is killed or the power fails, the destination is either unchanged or the
// complete new one.  A killed run leaves one temporary name, which no reader takes for a checkpoint
// and which the next run with the same destination removes.
// The classes are in atomic_file.h and atomic_folder.h; this file has their common part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/upload/unfinished.h"

namespace fsdp::formats {

class OutputPlace;

// Lets a run go on with what an earlier run left of an output, and leave its own work if it does
// not finish; see journal/run_journal.h.  The leader of a team, or a process that writes alone,
// calls all but `meet`.
class Resumption {
 public:
  Resumption() = default;
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;
  virtual ~Resumption() = default;
  // Returns whether this run goes on with the temporary of an ended run, which is locked.
  // Throws: kMismatch if that run had another plan; kIo.
  virtual bool takes(const OutputPlace& place, int temporary) = 0;
  // Called when the temporary is this run's own.  Throws: kIo, kNoSpace.
  virtual void begin(const OutputPlace& place, int temporary) = 0;
  // Called when all members of a team have found the temporary.
  // Throws: kIo; what Team::exchange throws.
  virtual void meet(const OutputPlace& place) = 0;
  // Returns the files of a folder that hold bytes of an earlier run; the others are removed.
  virtual const std::set<std::string>& kept_files() const = 0;
  // Returns whether the temporary stays for a later run.
  virtual bool keeps() const noexcept = 0;
  // Called when the output is in place, or its temporary is about to be removed.
  virtual void end() noexcept = 0;
};

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
  // Write the output together with these processes (joined.h); null: alone.
  Team* team = nullptr;
  // Null: an earlier run's leftover is removed, and this run leaves none.
  std::shared_ptr<Resumption> resumption = {};
};

// Returns the free bytes for this user on the file system that holds `folder`.
// Throws: kIo, kNotFound.
std::uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace fsdp::formats
