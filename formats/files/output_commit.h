// SPDX-License-Identifier: Apache-2.0
// Commits or removes the temporary of an output.  Only for atomic_file and atomic_directory.
#pragma once

#include <mutex>

#include "formats/base/error.h"
#include "formats/files/atomic_output.h"
#include "formats/files/output_place.h"

namespace fsdp::formats {

// Note [abandoning outputs]
// A process that is asked to stop ends within a second, wherever its threads are; the thread that
// ends it then removes the temporaries.  A rename into place must not be half done when that
// happens, so the rename and the removal exclude each other.  Steps after the rename, such as fsync
// of the folder, may be cut off.
struct Unfinished {
  virtual ~Unfinished() = default;
  // Removes the temporary, if it still is one.
  virtual void abandon() noexcept = 0;
};

// Counts an output that was committed.
void note_committed() noexcept;

// Held by a commit from before its rename until the output is marked as committed.
std::mutex& commit_mutex();
// Registers an output that may have to be abandoned, from its construction to its destruction.
void note_unfinished(Unfinished& output);
void forget_unfinished(Unfinished& output) noexcept;

// Calls `options.before_commit`, if there is one, with OutputPlace::path_of_temporary().
// Messages name the destination.
// Throws: what that throws; kIo for an error of the file system.
void look_before_commit(const OutputPlace& place, const OutputOptions& options);

// Returns whether the last renameat2 failed because the file system or kernel does not know its
// flag.
bool flag_unsupported();

// kExists: there is something at the destination, or it appeared there meanwhile.
Error already_exists(const OutputPlace& place);
Error appeared(const OutputPlace& place);

// Renames the temporary to the destination if nothing exists there; returns false if something
// does.
// Throws: kIo.
bool rename_to_free_name(const OutputPlace& place, OutputKind kind);

// Calls fsync on the folder after a rename.  Throws: kIo saying that the new one is in place.
void sync_parent_after_rename(const OutputPlace& place);

}  // namespace fsdp::formats
