// SPDX-License-Identifier: Apache-2.0
// Outputs that appear whole or not at all: a temporary name beside the destination, fsync, rename, fsync of
// the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "formats/base/file.h"

namespace fsdp::formats {

struct OutputOptions {
  bool replace = false;  // an existing destination is replaced, else kExists
  bool sync = true;      // fsync files and folder, so that what was reported as done survives a power cut
};

// One file being written under a temporary name.  Thread-safe: `write_at`.
class OutputFile {
 public:
  OutputFile(FileDescriptor fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}
  // Takes disk space for `bytes` at once, so that a full disk is an early error.  Throws: kNoSpace, kIo.
  void reserve(std::uint64_t bytes);
  // Throws: kNoSpace, kIo.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // fsync and close, both checked; a failed fsync is final.  Throws: kIo, kNoSpace.
  void finish(bool sync);
  const std::string& name() const { return name_; }

 private:
  FileDescriptor fd_;
  std::string name_;
};

// A single file that appears at `destination` by `commit`; destroyed before, it leaves nothing.
//
// The temporary is ".<name>.fsdp-tmp" in the destination's folder, locked (flock) while it is written: a
// second writer of the same destination gets kBusy, and what a killed run left behind is taken over.
class AtomicFile {
 public:
  // Throws: kExists, kBusy, kNotFound (no such folder), kNotRegular (destination is a folder or device), kIo.
  AtomicFile(const std::filesystem::path& destination, const OutputOptions& options);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  OutputFile& file() { return *file_; }
  // fsync, rename into place (refusing one that appeared meanwhile unless `replace`), fsync of the folder.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::unique_ptr<OutputFile> file_;
};

// A folder of files that appears at `destination` by `commit`, all of it at once.
//
// An existing destination is replaced only where `replace` is set and it is empty or holds nothing but regular
// files that a checkpoint consists of (*.safetensors, *.json, *.distcp, .metadata, *.pt); anything else is
// kExists naming what is in the way.  The exchange is atomic (renameat2); the old folder is removed after it.
class AtomicDirectory {
 public:
  // Throws: as AtomicFile; kUnsupported where the file system cannot exchange names and `replace` is needed.
  AtomicDirectory(const std::filesystem::path& destination, const OutputOptions& options);
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;
  ~AtomicDirectory();
  // A new file of that plain name in the folder; `commit` finishes it.
  OutputFile& add_file(const std::string& name);
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Free bytes for this user on the file system that holds `folder`.  Throws: kIo, kNotFound.
std::uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace fsdp::formats
