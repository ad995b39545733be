// SPDX-License-Identifier: Apache-2.0
// What files and folders that appear on this machine have in common: a temporary beside the
// destination, which is renamed into place or removed.  Only for atomic_file, atomic_folder,
// stored.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/outputs/new_folders.h"
#include "formats/bytes/outputs/options.h"
#include "formats/bytes/outputs/place.h"
#include "formats/bytes/upload/unfinished.h"

namespace fsdp::formats {

// Removes the temporary and new folders at destruction, unless `note_placed` was called or the
// journal keeps them.
class LocalOutput : private Unfinished {
 public:
  ~LocalOutput() override;

 protected:
  // Throws: like NewFolders and OutputPlace.
  LocalOutput(const std::filesystem::path& destination, const OutputOptions& options,
              OutputKind kind);
  // Makes the temporary, or takes the one that the journal goes on with.
  // Throws: like OutputPlace::claim and Journal::takes.
  void claim();
  // Calls `before_commit` with OutputPlace::path_of_temporary().  Throws: like look_before_commit.
  void look() const;
  // Renames the temporary to the destination if nothing exists there; returns false if something
  // does.  Throws: kIo.
  bool rename_to_free_name() const;
  // Marks the output as in place, unlocks `committing`, which holds commit_mutex, and makes the new
  // name durable.  Throws: kIo saying that the new output is in place.
  void note_placed(std::unique_lock<std::mutex>& committing);
  // Return kExists: something is at the destination, or it appeared there meanwhile.
  Error already_exists() const;
  Error appeared() const;

  const OutputOptions options_;
  NewFolders new_folders_;  // above the output
  const OutputPlace place_;
  // Locked.  Of a file it shares the lock of the file being written, and keeps it after that is
  // closed.
  FileDescriptor temporary_;
  bool committed_ = false;

 private:
  void abandon() noexcept override;
};

// Calls `options.before_commit`, if there is one, for the finished output at `written`, which
// messages call `shown`.
// Throws: what that throws; kIo for an error of the file system.
void look_before_commit(const std::filesystem::path& written, const std::string& shown,
                        const OutputOptions& options);

// Returns whether the last renameat2 failed because the file system or kernel does not know its
// flag.
bool flag_unsupported();

// Returns the error for `why`, which came when the output was in place and had no seal.
Error without_seal(ErrorCode code, std::string_view why, const std::string& shown);

}  // namespace fsdp::formats
