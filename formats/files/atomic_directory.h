// SPDX-License-Identifier: Apache-2.0
// A folder that appears whole or not at all (see atomic_output.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/files/atomic_output.h"
#include "formats/files/file.h"
#include "formats/files/file_link.h"
#include "formats/files/output_file.h"
#include "formats/files/seal.h"

namespace fsdp::formats {

// A folder of files that appears at `destination` by `commit`, all of it at once.
//
// An existing destination is replaced only if `replace` is set and it is empty or holds only
// regular files that a checkpoint consists of (*.safetensors, *.json, *.distcp, *.metadata, *.pt,
// *.pth, *.bin, *.pkl) and folders of such files; anything else is kExists naming the file in the
// way.  The exchange is atomic (renameat2); the old folder is removed after it.  Temporary name,
// locks and permissions are as for AtomicFile.  A slash after the destination is allowed.
//
// A destination that is a URL lies in a store: see Note [outputs in a store].
class AtomicDirectory {
 public:
  // Throws: like AtomicFile (kNotRegular: destination is not a folder); kUnsupported if the file
  // system cannot exchange two names and `replace` needs it, and for a URL of no store; what Store
  // throws.
  AtomicDirectory(const std::filesystem::path& destination, const OutputOptions& options);
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;
  ~AtomicDirectory();
  // Adds a new file of that name to the folder: a plain name, or one in a folder inside it, "a/b",
  // which is made if it is missing.  `commit` finishes it; with many files the caller does so
  // earlier, because each open file takes a descriptor.  Lifetime: the result lives as long as
  // this.
  // Throws: kPath (neither), kExists (added before), kIo, kNoSpace.
  OutputFile& add_file(const std::string& name);
  // Adds a file of that name with the bytes of `source`, shared with it if the file systems allow
  // it (see share_file).  It is synced as the folder's options say.
  // `crc`: the CRC-32 of the source, if the caller has it; a folder that is sealed needs it, and
  // otherwise reads the source if it is shared.
  // Throws: like add_file; what share_file throws.  Requires: no team.
  Sharing link_file(const std::string& name, const File& source, SharingOptions options = {},
                    std::optional<std::uint32_t> crc = std::nullopt);
  // Records a file that another process put into this folder (see joined_output.h), for the seal.
  void add_sealed(SealedFile file);
  // Returns a text by which other processes find this very folder and put files of their own into
  // it (see joined_output.h).  They finish them before `commit`, which syncs the folder but not
  // their content.
  // Throws: kIo, kNoSpace; kUnsupported in a store.
  std::string invitation();
  // With OutputOptions::seal, writes the folder's seal last.
  // Throws: like AtomicFile; kBusy, kUnsupported.
  void commit();

 private:
  struct Impl;
  struct Joined;
  struct Stored;
  void place();

  Team* team_;
  std::unique_ptr<Impl> impl_;      // null in a team's member that does not lead,
  std::unique_ptr<Joined> joined_;  // which has this
  std::unique_ptr<Stored> stored_;  // instead of both, if it lies in a store
};

}  // namespace fsdp::formats
