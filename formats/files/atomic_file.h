// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all (see atomic_output.h).
#pragma once

#include <filesystem>
#include <memory>

#include "formats/files/atomic_output.h"
#include "formats/files/output_file.h"

namespace fsdp::formats {

// A single file that appears at `destination` by `commit`; if destroyed before, it leaves nothing.
//
// The temporary is ".<name>.fsdp-tmp" in the destination's folder, locked (flock) while it is
// written: a second writer of the same destination gets kBusy, and the leftover of a killed run is
// removed.  If the file system has no locks, a temporary that exists already is kBusy, because it
// cannot be told whether its writer is alive.  Permissions follow the umask.
//
// A destination that is a URL lies in a store: see Note [outputs in a store].  There are no locks:
// of two writers of one destination the second to commit gets kExists, or replaces the first.
//
// A seal of the previous file (sidecar_name) is removed before the new file appears, and the new
// seal is written after: whenever the process ends, there is never a seal beside a file that it was
// not made for.
class AtomicFile {
 public:
  // Throws: kUsage (a destination that names no file: empty, "." or with a slash at the end),
  // kExists, kBusy, kNotFound (no such folder, and no `make_folders`), kNotRegular (destination is
  // a folder, link or device), kIo, kNoSpace; kUnsupported for a URL of no store; what Store
  // throws.
  AtomicFile(const std::filesystem::path& destination, const OutputOptions& options);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  OutputFile& file() { return *file_; }
  // Finishes the file, renames it into place (unless another one appeared meanwhile and `replace`
  // is not set), and fsyncs the folder.
  // Throws: kExists, kIo, kNoSpace.  The destination is then as before, without its seal, unless
  // the message says that the new one is in place: then only a step after the rename failed.
  void commit();

 private:
  struct Impl;
  void write_seal() const;
  void place();
  void commit_stored();

  Team* team_;
  bool sync_;
  std::unique_ptr<Impl> impl_;  // null in a team's member that does not lead, and in a store
  struct Stored;
  std::unique_ptr<Stored> stored_;  // null unless it lies in a store
  std::unique_ptr<OutputFile> file_;
};

}  // namespace fsdp::formats
