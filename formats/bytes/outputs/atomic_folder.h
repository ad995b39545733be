// SPDX-License-Identifier: Apache-2.0
// A folder that appears whole or not at all (see options.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/bytes/base/interface.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/file_link.h"
#include "formats/bytes/outputs/options.h"

namespace fsdp::formats {

// A folder of files that appears at `destination` by `commit`, all of it at once.
//
// An existing destination is replaced only if `replace` is set and it is empty or holds only
// regular files that a checkpoint consists of (*.safetensors, *.json, *.distcp, *.metadata, *.pt,
// *.pth, *.bin, *.pkl) and folders of such files and folders, kMaxInnerFolders deep; anything else
// is kExists naming the file in the way.  The exchange is atomic (renameat2); the old folder is
// removed after it.  Temporary name, locks and permissions are as for AtomicFile.  A slash after
// the destination is allowed.
//
// A destination that is a URL lies in a store: see Note [outputs in a store].
class AtomicFolder : public Interface {
 public:
  // Adds a new file of that name to the folder: a plain name, or one in folders inside it, "a/b/c",
  // at most kMaxInnerFolders; inner folders are made if they are missing.  `commit` finishes the
  // file; with many files the caller must finish them earlier, because each open file takes a
  // descriptor.
  // Lifetime: the result lives as long as this.
  // Throws: kPath (another form of name), kExists (added before), kIo, kNoSpace.
  virtual OutputFile& add_file(const std::string& name) = 0;
  // Adds a file of that name with the bytes of `source`, shared with it if the file systems allow
  // it (see share_file).  It is synced as the folder's options say.
  // `crc`: the CRC-32 of the source, if the caller has it.  A sealed folder needs it, and without
  // it reads a source that is shared.
  // Throws: like add_file; what share_file throws; kUnsupported for a member of a team that is not
  // the leader.
  virtual Sharing link_file(const std::string& name, const File& source,
                            SharingOptions options = {},
                            std::optional<std::uint32_t> crc = std::nullopt) = 0;
  // With OutputOptions::seal, writes the folder's seal last.
  // Throws: like AtomicFile; kBusy, kUnsupported.
  virtual void commit() = 0;
};

// Begins a folder at `destination`, a path or a URL.
// Throws: like new_file (kNotRegular: destination is not a folder); kUnsupported if the file system
// cannot exchange two names and `replace` needs it.
std::unique_ptr<AtomicFolder> new_folder(const std::filesystem::path& destination,
                                         const OutputOptions& options);

// A folder of this machine, into which other processes put files of their own (JoinedFolder).
class SharedFolder : public AtomicFolder {
 public:
  // Records a file that another process put into this folder, for the seal.
  virtual void add_sealed(SealedFile file) = 0;
  // Returns a text by which other processes find this very folder.  They finish their files before
  // `commit`, which syncs the folder but not their content.
  // Throws: kIo, kNoSpace.
  virtual std::string invitation() = 0;
};
// Requires: no team, and this process owns the folder.
// Throws: like new_folder; kUnsupported for a URL.
std::unique_ptr<SharedFolder> new_shared_folder(const std::filesystem::path& destination,
                                                const OutputOptions& options);

}  // namespace fsdp::formats
