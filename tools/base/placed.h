// SPDX-License-Identifier: Apache-2.0
// Remembers the permanent results of a run, for messages about later failures: a report that cannot
// be written does not undo an output or a removal.
#pragma once

#include <cstddef>
#include <string>

namespace fsdp::cli {

// Records that the output is complete under its name.
void note_placed(const std::string& destination);
// Records what removed_text() returned.  Must be called after the removal; needs no memory.
void note_removed(std::string text) noexcept;
// Returns "; removed before that: 2 checkpoints".
std::string removed_text(std::size_t checkpoints);
// Returns whether note_removed was called.
bool removed_anything() noexcept;
// Forgets all records; called when a run begins.
void forget_placed();
// Returns "; full.pt is in place", escaped, or what was removed; empty if nothing was done.
std::string placed_text();

}  // namespace fsdp::cli
