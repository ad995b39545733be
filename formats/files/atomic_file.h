// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all (see atomic_output.h).
#pragma once

#include <filesystem>
#include <memory>

#include "formats/files/atomic_output.h"
#include "formats/files/output_file.h"

namespace fsdp::formats {

// A single file that appears at `destination` by `commit`; destroyed before, it leaves nothing.
//
// The temporary is ".<name>.fsdp-tmp" in the destination's folder, locked (flock) while it is
// written: a second writer of the same destination gets kBusy, and what a killed run left behind is
// removed.  Where the file system has no locks, a temporary that exists already is kBusy, for
// nobody can tell whether its writer lives.  Permissions are as the umask gives.
//
// A seal of the file that stood there (sidecar_name) is removed before the new one appears, and the
// new one's is written after: whatever moment the process ends at, no seal is beside a file it was
// not made for.
class AtomicFile {
 public:
  // Throws: kUsage (a destination that names no file: empty, "." or with a slash behind it),
  // kExists, kBusy, kNotFound (no such folder, and no `make_folders`), kNotRegular (destination is
  // a folder, link or device), kIo, kNoSpace.
  AtomicFile(const std::filesystem::path& destination, const OutputOptions& options);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  OutputFile& file() { return *file_; }
  // Finishes the file, renames it into place (refusing one that appeared meanwhile unless
  // `replace`), and fsyncs the folder.
  // Throws: kExists, kIo, kNoSpace.  The destination is then as before, without its seal, unless
  // the message says that the new one is in place: only what follows the rename failed.
  void commit();

 private:
  struct Impl;
  void write_seal() const;

  std::unique_ptr<Impl> impl_;
  std::unique_ptr<OutputFile> file_;
};

}  // namespace fsdp::formats
