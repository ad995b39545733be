// SPDX-License-Identifier: Apache-2.0
// Outputs that appear whole or not at all: a temporary name beside the destination, fsync, rename,
// fsync of the folder.
//
// Whatever moment the process is killed or the power fails at, the destination is what it was or
// the new one, complete.  What a killed run leaves is one temporary name, which no reader takes for
// a checkpoint and which the next run of the same destination removes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "formats/base/file.h"
#include "formats/base/file_link.h"
#include "formats/base/output_file.h"
#include "formats/base/seal.h"

namespace fsdp::formats {

struct OutputOptions {
  bool replace = false;  // an existing destination is replaced, else kExists
  bool sync =
      true;  // fsync files and folder, so that what was reported as done survives a power cut
  bool seal = false;  // leave a seal with it (seal.h), made of the checksums of what is written
  // Called by `commit` with the path of the finished temporary, before anything is renamed: what it
  // throws leaves the destination as it was.
  std::function<void(const std::filesystem::path& temporary)> before_commit = {};
};

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
  // kExists, kBusy, kNotFound (no such folder), kNotRegular (destination is a folder, link or
  // device), kIo, kNoSpace.
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

// A folder of files that appears at `destination` by `commit`, all of it at once.
//
// An existing destination is replaced only where `replace` is set and it is empty or holds nothing
// but regular files that a checkpoint consists of (*.safetensors, *.json, *.distcp, *.metadata,
// *.pt, *.pth, *.bin, *.pkl) and folders of such files; anything else is kExists naming what is in
// the way.  The exchange is atomic (renameat2); the old folder is removed after it.  Temporary
// name, locks and permissions are as with AtomicFile.  A slash behind the destination is allowed.
class AtomicDirectory {
 public:
  // Throws: as AtomicFile (kNotRegular: destination is no folder); kUnsupported where the file
  // system cannot exchange two names and `replace` needs it.
  AtomicDirectory(const std::filesystem::path& destination, const OutputOptions& options);
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;
  ~AtomicDirectory();
  // A new file of that name in the folder: a plain name, or one in a folder inside it, "a/b", which
  // is made where it is missing.  `commit` finishes it; with many files the caller does so earlier,
  // each open one being a descriptor.  Lifetime: of the result, as long as this.
  // Throws: kPath (neither), kExists (added before), kIo, kNoSpace.
  OutputFile& add_file(const std::string& name);
  // A file of that name with the bytes of `source`, shared with it where the file systems allow it
  // (see share_file).  Whether it is synced follows from the folder's options.
  // `crc`: the CRC-32 of the source, where the caller has it; a folder that is sealed needs it, and
  // reads the source for it where it is shared.
  // Throws: as add_file; what share_file throws.
  Sharing link_file(const std::string& name, const File& source, SharingOptions options = {},
                    std::optional<std::uint32_t> crc = std::nullopt);
  // Another process put a file into this folder (see joined_folder.h), which the seal is to list.
  void add_sealed(SealedFile file);
  // Text by which other processes find this very folder and put files of their own into it (see
  // joined_folder.h).  They finish them before `commit`, which syncs the folder but not their
  // content.
  // Throws: kIo, kNoSpace.
  std::string invitation();
  // With OutputOptions::seal, writes the folder's seal last.
  // Throws: as AtomicFile; kBusy, kUnsupported.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Removes the temporaries of every output that is being written, for a process that is about to end
// without returning to whoever writes them.  Afterwards nothing is committed any more: who tries
// waits for that end.
void abandon_outputs() noexcept;

// Free bytes for this user on the file system that holds `folder`.  Throws: kIo, kNotFound.
std::uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace fsdp::formats
