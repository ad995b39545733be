// SPDX-License-Identifier: Apache-2.0
// Remembers the output that a run has already put in place, for messages about later failures: a
// report that cannot be written does not undo an output.
#pragma once

#include <string>

namespace fsdp::cli {

// Records that the output is complete under its name.
void note_placed(const std::string& destination);
// Forgets it when a run begins.
void forget_placed();
// Returns "; full.pt is in place", escaped; empty if nothing is.
std::string placed_text();

}  // namespace fsdp::cli
