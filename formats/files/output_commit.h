// SPDX-License-Identifier: Apache-2.0
// How the temporary of an output comes into its place, or goes.  For atomic_file and
// atomic_directory alone.
#pragma once

#include <mutex>

#include "formats/base/error.h"
#include "formats/files/atomic_output.h"
#include "formats/files/output_place.h"

namespace fsdp::formats {

// Note [abandoning outputs]
// A process that is asked to stop ends within a second, wherever its threads are; whoever ends it
// then removes the temporaries in their stead.  A rename into place must not be half done when that
// happens, so that it and the removal exclude each other.  What follows on the rename, such as
// fsync of the folder, may be cut off.
struct Unfinished {
  virtual ~Unfinished() = default;
  // Removes the temporary, if it still is one.
  virtual void abandon() noexcept = 0;
};

// An output has come into its place.
void note_committed() noexcept;

// Held by a commit from before its rename until the output knows that it was committed.
std::mutex& commit_mutex();
// An output knows of itself that it may have to be abandoned, from its first moment to its last.
void note_unfinished(Unfinished& output);
void forget_unfinished(Unfinished& output) noexcept;

// Calls `options.before_commit`, if there is one, with the temporary by way of the open folder that
// it lies in, whatever that is renamed to.  In messages it has the name of the destination.
// Throws: what it throws; kIo for an error of the file system.
void look_before_commit(const OutputPlace& place, const OutputOptions& options);

// Whether the last renameat2 failed because the file system or kernel does not know its flag.
bool flag_unsupported();

// kExists: something stands at the destination, or came to stand there.
Error already_exists(const OutputPlace& place);
Error appeared(const OutputPlace& place);

// Renames the temporary to the destination where nothing stands there; false where something does.
// Throws: kIo.
bool rename_to_free_name(const OutputPlace& place, OutputKind kind);

// fsync of the folder behind a rename.  Throws: kIo saying that the new one is in place.
void sync_parent_after_rename(const OutputPlace& place);

}  // namespace fsdp::formats
