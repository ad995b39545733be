// SPDX-License-Identifier: Apache-2.0
// The outputs that are being written, for a process that is about to end.
#pragma once

#include <cstdint>
#include <mutex>

namespace fsdp::formats {

// Note [abandoning outputs]
// A process that is asked to stop ends within a second, wherever its threads are; the thread that
// ends it removes the temporaries.  A rename into place must not be half done then, so the rename
// and the removal exclude each other.  Steps after the rename, such as fsync of the folder, may be
// cut off.
struct Unfinished {
  virtual ~Unfinished() = default;
  // Removes the temporary, if it is still uncommitted.
  virtual void abandon() noexcept = 0;
};

// Registers an output that may have to be abandoned, from its construction to its destruction.
void note_unfinished(Unfinished& output);
void forget_unfinished(Unfinished& output) noexcept;

// Returns the mutex that a commit holds from before its rename until the output is marked as
// committed.
std::mutex& commit_mutex();
// Counts an output that was committed.
void note_committed() noexcept;

// Removes the temporaries of every output that is being written, for a process that is about to end
// without returning to the code that writes them.  Afterwards nothing is committed any more: a
// thread that tries waits for the process to end.
void abandon_outputs() noexcept;

// Returns the number of outputs that this process has committed.
std::uint64_t outputs_committed() noexcept;

}  // namespace fsdp::formats
